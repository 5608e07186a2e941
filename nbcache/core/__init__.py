"""The base of all other packages: settings, errors, values, patches of modules, text, files and threads."""
