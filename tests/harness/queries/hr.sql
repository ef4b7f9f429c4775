-- Queries over staff: schema-qualified names, self joins, small integers, infinities.

-- name: carry
SELECT * FROM hr.employees;
-- name: managers
SELECT e.emp_id, e.name, m.name AS manager, d.name AS department
FROM hr.employees e LEFT JOIN hr.employees m ON e.manager = m.emp_id LEFT JOIN hr.departments d ON d.dept_id = e.dept_id;
-- name: dearer_than_manager
SELECT e.emp_id, e.salary - m.salary AS more FROM hr.employees e JOIN hr.employees m ON e.manager = m.emp_id AND e.salary > m.salary;
-- name: pay_by_department
SELECT d.dept_id, d.name, count(e.emp_id) AS staff, sum(e.salary) AS pay, avg(e.salary) AS mean, sum(e.bonus) AS bonus, max(e.hired) AS newest
FROM hr.departments d LEFT JOIN hr.employees e ON e.dept_id = d.dept_id GROUP BY d.dept_id, d.name;
-- name: over_budget
SELECT d.name, d.budget, sum(e.salary) AS pay FROM hr.departments d JOIN hr.employees e USING (dept_id)
GROUP BY d.dept_id, d.name, d.budget HAVING sum(e.salary) * 12 > d.budget;
-- name: still_here
SELECT emp_id, hired, left_on, left_on = 'infinity' AS stays, left_on > '2024-06-01' AS later FROM hr.employees WHERE left_on > hired;
-- name: last_leaver
SELECT dept_id, max(left_on) AS latest, min(left_on) AS earliest, count(DISTINCT left_on) AS days FROM hr.employees GROUP BY dept_id;
-- name: grades
SELECT grade, count(*) AS n, grade = 'a' AS is_a, length(grade) AS len, grade || '.' AS dotted FROM hr.employees GROUP BY grade;
-- name: idle
SELECT e.emp_id, e.name FROM hr.employees e WHERE NOT EXISTS (SELECT 1 FROM hr.assignments a WHERE a.emp_id = e.emp_id);
-- name: idle_not_in_nullable
SELECT e.emp_id FROM hr.employees e WHERE e.emp_id NOT IN (SELECT manager FROM hr.employees WHERE grade = 'C');
-- name: bosses
SELECT emp_id, name FROM hr.employees WHERE emp_id IN (SELECT manager FROM hr.employees WHERE grade = 'a');
-- name: project_hours
SELECT p.project, p.active, count(a.emp_id) AS people, sum(a.hours) AS hours, avg(a.hours) AS mean, p.budget / nullif(sum(a.hours), 0)::float8 AS rate
FROM hr.projects p LEFT JOIN hr.assignments a USING (project) GROUP BY p.project, p.active, p.budget;
-- name: busiest_by_department
SELECT e.dept_id, max(h.hours) AS most FROM hr.employees e
JOIN (SELECT emp_id, sum(hours) AS hours FROM hr.assignments GROUP BY emp_id) h USING (emp_id) GROUP BY e.dept_id;
-- name: unknown_projects
SELECT a.project, a.emp_id FROM hr.assignments a LEFT JOIN hr.projects p USING (project) WHERE p.project IS NULL OR NOT p.active;
-- name: full_outer_staff
SELECT e.emp_id, a.emp_id AS assigned, a.project FROM hr.employees e FULL JOIN hr.assignments a ON a.emp_id = e.emp_id AND a.hours > 10;
-- name: parents
SELECT c.name, p.name AS parent, g.name AS grandparent FROM hr.departments c
LEFT JOIN hr.departments p ON c.parent = p.dept_id LEFT JOIN hr.departments g ON p.parent = g.dept_id;
-- name: pay_above_all_means
SELECT emp_id, salary FROM hr.employees WHERE salary > (SELECT max(m) FROM (SELECT avg(salary) AS m FROM hr.employees GROUP BY dept_id) x);
-- name: smallint_arithmetic
SELECT dept_id, dept_id + 1::smallint AS next, dept_id * dept_id AS square, (dept_id / 2::smallint) AS half FROM hr.departments;
-- name: all_words
SELECT name AS word FROM hr.departments UNION SELECT project FROM hr.projects UNION SELECT grade FROM hr.employees;
-- name: years
SELECT extract(year FROM hired) AS year, count(*) AS n, bool_and(bonus IS NULL) AS none, sum(salary) FILTER (WHERE grade LIKE 'b%') AS b_pay
FROM hr.employees GROUP BY extract(year FROM hired) HAVING count(*) > 1;
-- name: seniority
SELECT emp_id, age(date '2025-01-01', hired) AS age, make_date(2000 + emp_id, 1, 1) AS made, to_char(hired, 'YYYY-"Q"Q') AS quarter FROM hr.employees;
-- name: payroll_total
SELECT sum(salary) AS salaries, sum(bonus) AS bonuses, sum(salary::float8 + coalesce(bonus, 0)) AS total, count(DISTINCT grade) AS grades FROM hr.employees;
-- name: staff_matrix
SELECT dept_id, grade, count(*) AS n FROM hr.employees WHERE left_on = 'infinity' GROUP BY dept_id, grade;
