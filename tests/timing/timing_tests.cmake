# The tests whose outcome depends on the speed of the machine at that moment, each with the reason. They get the label `timing`:
# scripts/test runs them one at a time, and a second time if they fail. It runs every other test once. Keep this list short: a test that
# waits for a condition with a deadline does not belong here. A test that is added here needs a reason.

# SLURM's daemons have their own time limits (registration of a node, start of a step), which a busy machine with two cores exceeds.
set_tests_properties(cluster.slurm PROPERTIES LABELS timing)
set_tests_properties(cluster.suspended_jobs PROPERTIES LABELS timing)

# These compare the computing times of equal ranks: another process on the core of rank 0 makes rank 0 the straggler, which is a correct
# verdict.
set_tests_properties(launch.RunHostsStraggler.is_named_where_each_host_has_one_rank PROPERTIES LABELS timing)
set_tests_properties(launch.RunNodesStraggler.is_named_where_each_host_has_one_rank PROPERTIES LABELS timing)
