#include "apps/doctor/gpu_findings.h"

#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/fresh_directory.h"

namespace paceline::apps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A machine whose files are in a directory of the test.
class GpuFindings : public testing::Test {
 protected:
  GpuFindings() {
    machine_.root = directory_.file("root");
    machine_.variable = [this](const std::string& name) {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    machine_.interfaces = {"lo", "eth0", "docker0"};
    machine_.runtime_text = "runtime 12.4";
    machine_.nccl_text = "NCCL 2.21.3 (/usr/lib/libnccl.so.2)";
  }

  void write(const std::string& path, const std::string& text) {
    const auto file = machine_.root / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  void add_gpus(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string folder = "sys/bus/pci/devices/0000:1" + std::to_string(i) + ":00.0/";
      write(folder + "vendor", "0x10de");
      write(folder + "class", "0x030200");
      write(folder + "numa_node", "0");
      write(folder + "local_cpulist", "0-3");
    }
    machine_.num_visible = count;
  }
  Finding finding(const std::string& name) const {
    for (const Finding& one : gpu_findings(machine_)) {
      if (one.name == name) return one;
    }
    return {"no finding of that name", CheckResult::kOk, "", ""};
  }
  void expect(const std::string& name, CheckResult result, const std::string& text,
              const std::string& advice = "") const {
    const Finding found = finding(name);
    EXPECT_EQ(found.name, name);
    EXPECT_EQ(found.result, result) << found.text;
    EXPECT_THAT(found.text, HasSubstr(text));
    EXPECT_THAT(found.advice, HasSubstr(advice));
    if (result == CheckResult::kWarn || result == CheckResult::kFail) {
      EXPECT_NE(found.advice, "");
    }
  }

  const FreshDirectory directory_;
  std::map<std::string, std::string> variables_;
  GpuMachine machine_;
};

TEST_F(GpuFindings, a_machine_without_a_gpu_has_one_line) {
  const auto findings = gpu_findings(machine_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].result, CheckResult::kInfo);
}

TEST_F(GpuFindings, a_machine_in_order_has_no_warning) {
  add_gpus(2);
  for (const Finding& one : gpu_findings(machine_)) {
    EXPECT_EQ(one.result, CheckResult::kOk) << one.name << ": " << one.text;
  }
  expect("GPUs", CheckResult::kOk, "2 GPUs on the bus: 0000:10:00.0 (node 0)");
  expect("NCCL", CheckResult::kOk, "NCCL 2.21.3 (/usr/lib/libnccl.so.2)");
}

TEST_F(GpuFindings, a_gpu_that_the_driver_does_not_serve_is_told) {
  add_gpus(3);
  machine_.num_visible = 2;
  expect("GPUs", CheckResult::kWarn, "2 visible to CUDA", "Xid 79");
  variables_["CUDA_VISIBLE_DEVICES"] = "0,1";
  expect("GPUs", CheckResult::kOk, "2 visible to CUDA");
}

TEST_F(GpuFindings, cuda_and_nccl_that_cannot_be_used_fail) {
  add_gpus(1);
  machine_.runtime_error = "the driver supports CUDA up to 11.4";
  machine_.nccl_error = "NCCL cannot be loaded";
  expect("CUDA", CheckResult::kFail, "supports CUDA up to 11.4");
  expect("NCCL", CheckResult::kFail, "cannot be loaded", "PACELINE_LIBNCCL");
}

TEST_F(GpuFindings, a_local_rank_beyond_the_gpus_fails) {
  add_gpus(2);
  variables_["LOCAL_RANK"] = "1";
  expect("GPU of the rank", CheckResult::kOk, "local rank 1 has device 1");
  variables_["LOCAL_RANK"] = "2";
  expect("GPU of the rank", CheckResult::kFail, "local rank 2, but 2 visible GPUs", "LOCAL_RANK");
  machine_.num_visible = 1;
  expect("GPU of the rank", CheckResult::kOk, "local rank 2 has device 0");
}

TEST_F(GpuFindings, launchers_that_hide_gpus_from_their_peers_are_named) {
  add_gpus(4);
  machine_.num_visible = 1;
  variables_["SLURM_GPUS_PER_TASK"] = "1";
  expect("GPUs of peers", CheckResult::kWarn, "SLURM_GPUS_PER_TASK", "--gpu-bind=none");
  variables_.clear();
  variables_["OMPI_COMM_WORLD_RANK"] = "0";
  expect("GPUs of peers", CheckResult::kWarn, "mpirun", "local rank");
}

TEST_F(GpuFindings, an_iommu_that_translates_is_told) {
  add_gpus(2);
  write("proc/cmdline", "quiet intel_iommu=on");
  expect("GPU to GPU", CheckResult::kWarn, "IOMMU", "NCCL_P2P_DISABLE=1");
  write("proc/cmdline", "quiet intel_iommu=on iommu=pt");
  EXPECT_NE(finding("GPU to GPU").name, "GPU to GPU");
}

TEST_F(GpuFindings, instances_of_a_gpu_are_told) {
  add_gpus(1);
  write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "");
  expect("MIG", CheckResult::kWarn, "gpu0 is divided", "nvidia-smi -mig 0");
}

TEST_F(GpuFindings, an_interface_that_does_not_exist_or_leads_nowhere_is_told) {
  add_gpus(1);
  variables_["NCCL_SOCKET_IFNAME"] = "ib0";
  expect("NCCL's network", CheckResult::kWarn, "no interface matches ib0; this host has lo, eth0");
  variables_["NCCL_SOCKET_IFNAME"] = "docker0";
  expect("NCCL's network", CheckResult::kWarn, "docker0 does not lead to other hosts");
  variables_["NCCL_SOCKET_IFNAME"] = "eth";
  EXPECT_NE(finding("NCCL's network").name, "NCCL's network");
}

TEST_F(GpuFindings, rdma_cards_need_locked_memory_and_an_active_port) {
  add_gpus(1);
  write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  expect("RDMA", CheckResult::kOk, "mlx5_0");
  machine_.locked_memory = 64 << 10;
  expect("RDMA", CheckResult::kWarn, "may lock only 64 KiB of memory", "ulimit -l unlimited");
  machine_.locked_memory = {};
  write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
  expect("RDMA", CheckResult::kWarn, "no port of mlx5_0 is active", "NCCL_IB_DISABLE=1");
}

TEST_F(GpuFindings, a_plugin_and_a_missing_nvml_are_told) {
  add_gpus(1);
  variables_["NCCL_NET_PLUGIN"] = "aws-ofi";
  expect("NCCL's plugin", CheckResult::kWarn, "aws-ofi", "every host");
  machine_.has_nvml = false;
  expect("NVML", CheckResult::kInfo, "libnvidia-ml.so.1");
}

}  // namespace
}  // namespace paceline::apps
