"""What people see and type: the IPython extension, the terminal, what both display, and the doctor."""
