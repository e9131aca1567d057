"""Documents and their labels: from files, folders, the hub, or a built-in task, to one table shape.

``load.load_data(options)`` returns train, validation and test as tables of what the problem needs.
Importing this package, its options and its table of tasks is cheap: heavy libraries are imported when
data are read.
"""
