"""Each command as a function of Python: arguments as people give them in, a value out.

`shardprep.build` and the others are the functions of these modules, and the command line prints
what they return. They print nothing and end no process; what is going on, they tell `progress`.
`resolve` finds the recipe, the source and the dataset that arguments mean.
"""
