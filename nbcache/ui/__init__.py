"""The user interface: the IPython extension, the terminal, their displays, and the doctor."""
