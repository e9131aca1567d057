"""Documents and their labels, read from files, folders, the hub or a built-in task as tables of one shape.

``load.load_data(options)`` returns train, validation and test as tables of what the problem needs.
Importing this package, its options and its table of tasks is fast: heavy libraries are imported when data are read.
"""
