set(SOURCES
  arrival.cpp
  bulletin.cpp
  fork_server.cpp
  hosted_store.cpp
  job_secret.cpp
  launch_environment.cpp
  loaded_files.cpp
  meeting_point.cpp
  rendezvous.cpp
  slurm_lists.cpp
  slurm_step.cpp
  variables.cpp)
set(LIBRARIES fmt::fmt)
