-- Window queries over staff: the classics of reports.

-- name: window_top_of_department
SELECT dept_id, emp_id, salary, dense_rank() OVER (PARTITION BY dept_id ORDER BY salary DESC) AS place, salary - avg(salary) OVER (PARTITION BY dept_id) AS above, salary / max(salary) OVER (PARTITION BY dept_id) AS ratio FROM hr.employees;
-- name: window_tenure
SELECT emp_id, hired, left_on, lag(left_on) OVER (PARTITION BY dept_id ORDER BY hired, emp_id) AS before, count(*) OVER (ORDER BY hired RANGE BETWEEN '1 year' PRECEDING AND CURRENT ROW) AS year, min(left_on) OVER (PARTITION BY grade ORDER BY emp_id) AS first_left, sum(bonus) OVER (PARTITION BY grade ORDER BY emp_id) AS bonus FROM hr.employees;
-- name: window_hours
SELECT project, emp_id, sum(hours) OVER (PARTITION BY project ORDER BY emp_id) AS running, sum(hours) OVER (PARTITION BY emp_id) AS of_employee, hours = max(hours) OVER (PARTITION BY project) AS is_most, ntile(2) OVER (PARTITION BY project ORDER BY hours, emp_id) AS half FROM hr.assignments;
-- name: window_department_tree
SELECT d.dept_id, e.emp_id, count(*) OVER (PARTITION BY d.parent) AS under, rank() OVER (PARTITION BY d.dept_id ORDER BY e.grade) AS grade, first_value(e.name) OVER (PARTITION BY d.dept_id ORDER BY e.salary DESC, e.emp_id) AS top FROM hr.departments d JOIN hr.employees e USING (dept_id);
-- name: window_median
SELECT dept_id, avg(salary) AS median FROM (SELECT dept_id, salary, row_number() OVER (PARTITION BY dept_id ORDER BY salary, emp_id) AS place, count(*) OVER (PARTITION BY dept_id) AS n FROM hr.employees) s WHERE place IN ((n + 1) / 2, (n + 2) / 2) GROUP BY dept_id;
