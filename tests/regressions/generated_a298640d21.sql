-- seed 20261121/18, g28: casts, derived table, distinct aggregates, distinct on, hypothetical, not exists, numbering, own aggregate, whole rows
-- schema
CREATE TABLE t0 (id text NOT NULL, b smallint, c4 numeric(30,12));
ALTER TABLE t0 ADD PRIMARY KEY (id);
-- rows
-- query
SELECT percent_rank() OVER (PARTITION BY trim_scale(((r6.c1 % 1000) * 2.50::numeric)) ORDER BY (range_intersect_agg((int4range(1, 4) * int4range(0, 5))) @> (r6.c1 % 9)::integer)) AS c4 FROM (SELECT DISTINCT ON (int4range(1, 4)) r1.c4 AS c1, percent_rank(1::integer) WITHIN GROUP (ORDER BY r1.b) AS c3 FROM t0 r1 GROUP BY r1.b, r1.c4 ORDER BY int4range(1, 4), to_char((r1.b % 3) % 1000, 'FM0009') DESC, ((r1.b % 3))::text, (trim_scale(r1.c4))::text) r6 GROUP BY r6.c1;
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
