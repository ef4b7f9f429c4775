"""WITH RECURSIVE: a loop of ordinary operators inside one (decision 11).

`body` has the operators of the step, `first_rounds` the rounds in which a row of UNION is found,
`agenda` the rounds that are still to come. May import: the root of dataflow.operators. Start
reading at `recursive`.
"""
