"""What everything else stands on: values, errors, settings, trust, text, files and threads."""
