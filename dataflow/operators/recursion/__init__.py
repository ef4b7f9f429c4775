"""WITH RECURSIVE: a loop of ordinary operators inside one (decision 11).

`loop_body` has the operators of the step, `first_rounds` finds the first round of each row of a
UNION, `round_queue` has the rounds still to come. May import: the root of dataflow.operators. Start
reading at `recursive`.
"""
