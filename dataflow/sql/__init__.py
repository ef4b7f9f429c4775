"""From PostgreSQL's canonical SQL to a plan, and from a plan to the nodes of a dataflow. Four
packages: `parse`, `bind`, `rules`, `lower`. May import everything of dataflow. Start reading at
`planner`."""
