"""Documents and their labels: from files, folders, the hub, or a built-in task, to one table shape.

``load.load(options)`` returns train, validation and test with the columns ``id``, ``text`` and ``label``.
Importing this package, its options and its table of tasks is cheap: heavy libraries are imported when
data are read.
"""
