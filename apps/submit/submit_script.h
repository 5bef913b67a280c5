#pragma once

// Makes the texts of `paceline submit`: a batch script for SLURM, or manifests for Kubernetes. The
// functions are pure. Every value that a user gave is checked or quoted.

#include <cstdint>
#include <string>
#include <vector>

namespace paceline::apps {

// The request for a job, the same for both schedulers.
struct SubmitRequest {
  std::string job_name = "paceline";
  int num_nodes = 1;
  int ranks_per_node = 1;
  int cores_per_rank = 1;
  std::string memory;                    // per node, such as 16G
  std::string paceline;                  // path of the command on the nodes
  std::vector<std::string> run_options;  // passed on to paceline run
  std::vector<std::string> command;      // the program and its arguments
};

struct SlurmRequest {
  std::string time, partition, account, qos, constraint, reservation, array, output;
  std::string directory;     // the folder in which the job starts
  int signal_seconds = 120;  // from the signal to the time limit; 0: no signal
  bool no_requeue = false;
};

// Error(kInvalid) for a value that SLURM would read as something else.
std::string slurm_script(const SubmitRequest& request, const SlurmRequest& slurm);

struct KubernetesRequest {
  std::string image, name_space;
  std::string shared_memory = "1Gi";  // of /dev/shm
  std::int64_t user = -1;             // user id to run as; -1: that of the image
  std::uint16_t port = 29500;
  std::string secret;  // of the job, as text
};

// Returns the manifests of a Secret, a headless Service and an Indexed Job. Error(kInvalid) for a
// value that Kubernetes would refuse.
std::string kubernetes_manifests(const SubmitRequest& request, const KubernetesRequest& kubernetes);

}  // namespace paceline::apps
