#include "apps/doctor/gpu_findings.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include "paceline/engine/collectives/backends/nccl/nccl_api.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline::apps {
namespace {

namespace fs = std::filesystem;
using enum CheckResult;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Checks {
 public:
  explicit Checks(const GpuMachine& machine)
      : machine_(machine), gpus_(launcher::find_gpus(machine.root)) {}

  std::vector<Finding> all() {
    if (gpus_.empty() && machine_.num_visible == 0) {
      return {{"GPUs", kInfo, "none: no NVIDIA GPU was found",
               "in a container: docker run --gpus all; training on the CPU needs none"}};
    }
    gpus();
    runtime();
    nccl();
    rank_device();
    hidden_peers();
    peer_copies();
    mig();
    interface();
    rdma();
    plugin();
    management();
    return std::move(findings_);
  }

 private:
  void add(const char* name, CheckResult result, std::string text, std::string advice = "") {
    findings_.push_back({name, result, std::move(text), std::move(advice)});
  }

  // A GPU that is on the bus but not visible to CUDA has failed, or the driver has not started it.
  void gpus() {
    std::vector<std::string> names;
    for (const launcher::Gpu& gpu : gpus_) {
      names.push_back(gpu.numa_node < 0 ? gpu.bus_id
                                        : fmt::format("{} (node {})", gpu.bus_id, gpu.numa_node));
    }
    const std::string text =
        fmt::format("{} on the bus: {}; {} visible to CUDA", counted(gpus_.size(), "GPU"),
                    fmt::join(names, ", "), machine_.num_visible);
    const bool lacks = machine_.runtime_error.empty() &&
                       !machine_.variable("CUDA_VISIBLE_DEVICES") &&
                       machine_.num_visible < static_cast<int>(gpus_.size());
    add("GPUs", lacks ? kWarn : kOk, text,
        lacks ? "a GPU that the driver does not serve may have failed (Xid 79, ECC): dmesg | grep "
                "-i xid, nvidia-smi; restart the host"
              : "");
  }

  void runtime() {
    if (machine_.runtime_error.empty()) return add("CUDA", kOk, machine_.runtime_text);
    add("CUDA", kFail, machine_.runtime_error,
        "follow the advice in this message, then run this command again");
  }

  void nccl() {
    if (machine_.nccl_error.empty()) return add("NCCL", kOk, machine_.nccl_text);
    add("NCCL", kFail, machine_.nccl_error,
        "backend nccl needs it; LD_LIBRARY_PATH and PACELINE_LIBNCCL choose the file");
  }

  void rank_device() {
    const auto text = machine_.variable("LOCAL_RANK");
    const auto local_rank = text ? parse_number<int>(*text) : std::nullopt;
    if (!local_rank || machine_.num_visible == 0) return;
    if (*local_rank < machine_.num_visible || machine_.num_visible == 1) {
      return add("GPU of the rank", kOk,
                 fmt::format("local rank {} has device {}", *local_rank,
                             *local_rank % machine_.num_visible));
    }
    add("GPU of the rank", kFail,
        fmt::format("local rank {}, but {} visible GPUs: two ranks would share one", *local_rank,
                    machine_.num_visible),
        "start no more ranks than GPUs (--nproc-per-node gpu), and choose the device by "
        "LOCAL_RANK, not by RANK");
  }

  void hidden_peers() {
    const char* name = nullptr;
    for (const char* hides : {"SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"}) {
      if (machine_.variable(hides)) name = hides;
    }
    const bool is_alone = machine_.num_visible == 1 && gpus_.size() > 1;
    if (name != nullptr && is_alone) {
      add("GPUs of peers", kWarn,
          fmt::format("{} shows each task only one GPU: NCCL cannot copy directly between GPUs",
                      name),
          "srun --gpus-per-node=N --gpu-bind=none instead of --gpus-per-task");
    } else if (machine_.variable("OMPI_COMM_WORLD_RANK") && is_alone) {
      add("GPUs of peers", kWarn,
          "mpirun shows each rank only one GPU: NCCL cannot copy directly between GPUs",
          "leave CUDA_VISIBLE_DEVICES unset; each rank takes the GPU of its local rank");
    }
  }

  // Direct copies between GPUs may hang if an IOMMU translates addresses, or if the PCI switches
  // have access control (ACS).
  void peer_copies() {
    if (gpus_.size() < 2) return;
    const std::string options = " " + text_of(machine_.root / "proc/cmdline");
    const auto has = [&](const char* word) { return options.find(word) != std::string::npos; };
    if ((has("intel_iommu=on") || has("amd_iommu=on") || has("iommu=force")) && !has("iommu=pt")) {
      add("GPU to GPU", kWarn,
          "the kernel has an IOMMU that translates addresses: direct copies between GPUs may hang "
          "or damage data",
          "boot with iommu=pt and disable ACS on the switches, or set NCCL_P2P_DISABLE=1");
    }
  }

  void mig() {
    std::error_code error;
    const fs::path folder = machine_.root / "proc/driver/nvidia/capabilities";
    for (const auto& gpu : fs::directory_iterator(folder, error)) {
      for (const auto& entry : fs::directory_iterator(gpu.path() / "mig", error)) {
        if (!entry.path().filename().string().starts_with("gi")) continue;
        return add(
            "MIG", kWarn,
            fmt::format("{} is divided into instances (MIG)", gpu.path().filename().string()),
            "a process can use only one instance, and NCCL's support for instances is limited; to "
            "train on several GPUs, disable MIG: nvidia-smi -mig 0");
      }
    }
  }

  void interface() {
    const auto given = machine_.variable("NCCL_SOCKET_IFNAME");
    if (!given || given->empty()) return;
    const bool is_refusal = given->starts_with("^");
    const bool is_exact = given->starts_with("=");
    const std::string names = given->substr(is_refusal || is_exact ? 1 : 0);
    if (is_refusal) return;
    for (const std::string_view name : split(names, ',')) {
      const auto fits = [&](const std::string& interface) {
        return is_exact ? interface == name : interface.starts_with(name);
      };
      const bool exists = std::any_of(machine_.interfaces.begin(), machine_.interfaces.end(), fits);
      const bool is_local = name.starts_with("lo") || name.starts_with("docker");
      if (exists && !is_local) continue;
      return add(
          "NCCL's network", kWarn,
          exists
              ? fmt::format("NCCL_SOCKET_IFNAME={}: {} does not lead to other hosts", *given, name)
              : fmt::format("NCCL_SOCKET_IFNAME={}: no interface matches {}; this host has {}",
                            *given, name, fmt::join(machine_.interfaces, ", ")),
          "name the interface that connects the hosts, or unset the variable");
    }
  }

  void rdma() {
    std::error_code error;
    std::vector<std::string> cards, down;
    for (const auto& card : fs::directory_iterator(machine_.root / "sys/class/infiniband", error)) {
      cards.push_back(card.path().filename());
      bool is_active = false;
      for (const auto& port : fs::directory_iterator(card.path() / "ports", error)) {
        is_active |= text_of(port.path() / "state").find("ACTIVE") != std::string::npos;
      }
      if (!is_active) down.push_back(cards.back());
    }
    if (cards.empty()) return;
    if (machine_.locked_memory) {
      return add("RDMA", kWarn,
                 fmt::format("{}, but a process may lock only {} of memory", fmt::join(cards, ", "),
                             size_text(*machine_.locked_memory)),
                 "NCCL registers its buffers with the card: ulimit -l unlimited (docker run "
                 "--ulimit memlock=-1)");
    }
    if (!down.empty()) {
      return add("RDMA", kWarn, fmt::format("no port of {} is active", fmt::join(down, ", ")),
                 "check ibstat and the cable, or set NCCL_IB_DISABLE=1");
    }
    add("RDMA", kOk, fmt::format("{}", fmt::join(cards, ", ")));
  }

  void plugin() {
    const auto given = machine_.variable("NCCL_NET_PLUGIN");
    if (!given || given->empty() || *given == "none") return;
    add("NCCL's plugin", kWarn, fmt::format("NCCL_NET_PLUGIN={}", *given),
        "every host must have the same plugin (libnccl-net*.so): a host without it uses another "
        "network, and the job hangs");
  }

  void management() {
    if (!machine_.has_nvml) {
      add("NVML", kInfo, "libnvidia-ml.so.1 cannot be loaded: GPUs are read from sysfs",
          "a container gets it with NVIDIA_DRIVER_CAPABILITIES=compute,utility");
    }
  }

  const GpuMachine& machine_;
  const std::vector<launcher::Gpu> gpus_;
  std::vector<Finding> findings_;
};

// Whether a library can be loaded. Unloads the library again.
bool can_load(const char* name) {
  void* const handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

void load_libraries(GpuMachine& machine) {
  try {
    const CudaApi& cuda = CudaApi::load();
    machine.runtime_text =
        fmt::format("runtime {} ({}), driver for {}", cuda_version_text(cuda.runtime_version),
                    cuda.library.path, cuda_version_text(cuda.driver_version));
    cuda.require(cuda.cudaGetDeviceCount(&machine.num_visible), "", "counting the GPUs");
  } catch (const Error& error) {
    machine.runtime_error = error.what();
  }
  try {
    const NcclApi& nccl = NcclApi::load();
    machine.nccl_text =
        fmt::format("NCCL {} ({})", nccl_version_text(nccl.version), nccl.library.path);
  } catch (const Error& error) {
    machine.nccl_error = error.what();
  }
}

}  // namespace

GpuMachine gpu_machine_here() {
  GpuMachine machine;
  machine.variable = process_environment();
  for (const InterfaceAddress& address : interface_addresses()) {
    machine.interfaces.push_back(address.interface);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    machine.locked_memory = limit.rlim_cur;
  }
  // On a machine without a GPU, loads nothing unless the user has named a library.
  const bool names_library = std::getenv("PACELINE_LIBCUDART") != nullptr;
  if (!names_library && launcher::find_gpus().empty()) return machine;
  machine.has_nvml = can_load("libnvidia-ml.so.1");
  load_libraries(machine);
  return machine;
}

std::vector<Finding> gpu_findings(const GpuMachine& machine) { return Checks(machine).all(); }

}  // namespace paceline::apps
