"""Staff in a schema of its own name: self joins, small integers, infinity dates, char grades."""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE SCHEMA hr;
CREATE TABLE hr.departments (
    dept_id smallint PRIMARY KEY,
    name varchar(30) NOT NULL,
    parent smallint,
    budget numeric(14,2)
);
CREATE TABLE hr.employees (
    emp_id integer PRIMARY KEY,
    dept_id smallint,
    manager integer,
    name text NOT NULL,
    salary numeric(9,2) NOT NULL,
    bonus double precision,
    hired date NOT NULL,
    left_on date NOT NULL DEFAULT 'infinity',
    grade char(2)
);
CREATE TABLE hr.projects (
    project text PRIMARY KEY,
    budget double precision,
    active boolean NOT NULL
);
CREATE TABLE hr.assignments (
    emp_id integer,
    project text,
    hours numeric(6,2),
    PRIMARY KEY (emp_id, project)
);
"""

_PROJECTS = draw.choice("apollo", "borealis", "cirrus", "Dune", "émile", "z-9")

HR = TestSchema(
    name="hr",
    ddl=DDL,
    tables=(
        TableSpec(
            "hr.departments",
            {
                "dept_id": draw.integers(1, 8),
                "name": draw.words(),
                "parent": draw.nullable(draw.integers(1, 8), 0.3),
                "budget": draw.nullable(draw.decimals(1000, 90000, 2), 0.1),
            },
            key=("dept_id",),
            rows=6,
            weight=0.6,
        ),
        TableSpec(
            "hr.employees",
            {
                "emp_id": draw.integers(1, 60),
                "dept_id": draw.nullable(draw.integers(1, 9), 0.1),
                "manager": draw.nullable(draw.integers(1, 60), 0.2),
                "name": draw.words(2),
                "salary": draw.decimals(900, 9000, 2),
                "bonus": draw.nullable(draw.floats(0, 500)),
                "hired": draw.dates(2015, 2024),
                "left_on": draw.mixed(draw.raw("'infinity'"), draw.dates(2023, 2025)),
                "grade": draw.nullable(draw.choice("a", "b", "b1", "C")),
            },
            key=("emp_id",),
            rows=40,
            weight=2,
        ),
        TableSpec(
            "hr.projects",
            {
                "project": _PROJECTS,
                "budget": draw.nullable(draw.floats(0, 5000)),
                "active": draw.booleans(),
            },
            key=("project",),
            rows=6,
            weight=0.5,
        ),
        TableSpec(
            "hr.assignments",
            {
                "emp_id": draw.integers(1, 60),
                "project": _PROJECTS,
                "hours": draw.nullable(draw.decimals(0, 80, 2), 0.15),
            },
            key=("emp_id", "project"),
            rows=60,
            weight=2,
        ),
    ),
    truncates=("hr.assignments",),
)
