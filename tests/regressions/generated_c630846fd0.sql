-- seed 20261121/30, g11: derived table, exclude, function in from, groups frame, having, hypothetical, numbering, recursive union, sorted aggregates, union all
-- schema
CREATE TABLE t0 (id integer NOT NULL, a integer NOT NULL);
ALTER TABLE t0 ADD PRIMARY KEY (a, id);
CREATE TABLE t2 (id integer NOT NULL, a integer, b bigint NOT NULL);
CREATE UNIQUE INDEX t2_identity ON t2 (id, b);
ALTER TABLE t2 REPLICA IDENTITY USING INDEX t2_identity;
-- rows
-- query
SELECT (percent_rank() OVER (PARTITION BY r6.c1, (r8.c0 % 3) ORDER BY ((r8.c2 % 1000) * 1.5::numeric)) IS NULL) AS c0 FROM (SELECT int4range(1, 4) AS c1, percent_rank((-1)::integer) WITHIN GROUP (ORDER BY r1.a) AS c2 FROM t0 r1 ) r6 LEFT JOIN (SELECT r7.a AS c0, r7.a AS c2 FROM t2 r7) r8 ON (r6.c2 = r8.c2);
-- differed
-- Traceback (most recent call last):
--   File "dataflow/sql/lower/lowering.py", line 109, in _operator
--     return make(node.plan, context)
--            ^^^^^^^^^^^^^^^^^^^^^^^^
--   File "dataflow/sql/lower/lowering.py", line 138, in _window
--     return make(plan, context)
--            ^^^^^^^^^^^^^^^^^^^
--   File "dataflow/operators/windows/window_follow.py", line 56, in __init__
--     self._running: dict[int, RunningCall] = {
--                                             ^
--   File "dataflow/operators/windows/window_follow.py", line 57, in <dictcomp>
--     i: running_call(c, context.evaluator)
--        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
--   File "dataflow/operators/windows/window_running.py", line 78, in running_call
--     linear = linear_call(call)
--              ^^^^^^^^^^^^^^^^^
--   File "dataflow/operators/windows/window_sums.py", line 77, in linear_call
--     argument = call.arguments[0]
--                ~~~~~~~~~~~~~~^^^
-- IndexError: tuple index out of range
