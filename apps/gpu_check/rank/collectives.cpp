// Collectives, messages and copies of CUDA tensors, compared with the CPU.

#include "paceline/training/tensor/collectives.h"

#include <fmt/format.h>

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/torch.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/device/streams.h"

#include "apps/gpu_check/rank/ranks.h"

namespace paceline::gpu_check {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                     at::kLong,  at::kInt,    at::kByte, at::kChar};
constexpr std::int64_t kSizes[] = {1, 3, 1023, 65537};
constexpr std::int64_t kLargeSize = (4 << 20) + 1;

struct Reduction {
  ReduceOp op;
  const char* name;
  std::int64_t largest;  // of the elements
};
constexpr Reduction kReductions[] = {{ReduceOp::kSum, "sum", 5},
                                     {ReduceOp::kMax, "maximum", 5},
                                     {ReduceOp::kMin, "minimum", 5},
                                     {ReduceOp::kProduct, "product", 2},
                                     {ReduceOp::kMean, "mean", 5}};

// Small whole numbers: every type represents them, and their sums, exactly.
at::Tensor numbers(const Ranks& ranks, std::int64_t count, at::ScalarType type,
                   std::int64_t largest) {
  return ((torch::arange(count) * 7 + ranks.rank() * 3).remainder(largest) + 1).to(type);
}

// A copy on the device that begins at the second element of its memory, so it is badly aligned.
at::Tensor odd_copy(const Ranks& ranks, const at::Tensor& host) {
  const at::Tensor place =
      torch::empty({host.numel() + 1}, torch::TensorOptions(ranks.device).dtype(host.dtype()));
  at::Tensor copy = place.narrow(0, 1, host.numel());
  copy.copy_(host);
  return copy;
}

class Comparison {
 public:
  explicit Comparison(const Ranks& ranks) : ranks_(ranks) {}

  int num_calls() const { return num_calls_; }

  void all(std::int64_t count, at::ScalarType type) {
    count_ = count;
    type_ = type;
    const ProcessGroup& group = *ranks_.group;
    const int size = group.world_size();
    const int last = size - 1;
    reductions();
    both("broadcast", 5, [&](const at::Tensor& t) { return broadcast(ranks_.group, t, last), t; });
    both("all_gather", 5,
         [&](const at::Tensor& t) { return all_gather_into_tensor(ranks_.group, t); });
    both("all_to_all", 5, [&](const at::Tensor& t) { return all_to_all_single(ranks_.group, t); });
    both("gather", 5, [&](const at::Tensor& t) {
      const auto parts = gather(ranks_.group, t, 0);
      return parts.empty() ? t : torch::cat(parts);
    });
    both("scatter", 5, [&](const at::Tensor& t) {
      at::Tensor mine = torch::zeros_like(t);
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < size && group.rank() == last; ++rank) parts.push_back(t + rank);
      scatter(ranks_.group, mine, parts, last);
      return mine;
    });
    both("all_gather_v", 5, [&](const at::Tensor& t) {
      std::vector<std::int64_t> rows;
      for (int rank = 0; rank < size; ++rank) rows.push_back(std::min<std::int64_t>(rank, count_));
      return all_gather_v(ranks_.group,
                          t.narrow(0, 0, rows[static_cast<std::size_t>(group.rank())]), rows);
    });
  }

 private:
  void reductions() {
    const bool is_float = at::isFloatingType(type_);
    for (const auto& [op, name, largest] : kReductions) {
      if (op == ReduceOp::kMean && !is_float) continue;
      if (op == ReduceOp::kProduct && ranks_.world_size() > 6) continue;  // too large for int8
      const ReduceOp reduce_op = op;
      both(fmt::format("all_reduce ({})", name), largest,
           [&](const at::Tensor& t) { return all_reduce(ranks_.group, t, reduce_op), t; });
      both(fmt::format("reduce_scatter ({})", name), largest,
           [&](const at::Tensor& t) { return reduce_scatter(ranks_.group, t, reduce_op); });
      both(fmt::format("reduce ({})", name), largest, [&](const at::Tensor& t) {
        reduce(ranks_.group, t, 0, reduce_op);
        return ranks_.rank() == 0 ? t : torch::zeros({1}, t.options());  // rank 0 has the result
      });
    }
  }

  // Calls `call` on CPU tensors and on the same values on the device, and compares the results.
  template <class Call>
  void both(const std::string& name, std::int64_t largest, const Call& call) {
    // The number of elements must be divisible by the number of ranks.
    const at::Tensor host = numbers(ranks_, count_ * ranks_.world_size(), type_, largest);
    const at::Tensor on_device = odd_copy(ranks_, host);
    const at::Tensor found = call(on_device);
    const at::Tensor expected = call(host);
    ++num_calls_;
    const at::Tensor result = found.cpu();
    const bool is_equal =
        name.find("mean") == std::string::npos
            ? torch::equal(result, expected)
            : torch::allclose(result.to(at::kFloat), expected.to(at::kFloat), 1e-2, 1e-2);
    if (is_equal) return;
    throw CheckFailed(fmt::format("{} of {} elements of type {} differs from the CPU's result",
                                  name, host.numel(), c10::toString(type_)));
  }

  const Ranks& ranks_;
  std::int64_t count_ = 0;
  at::ScalarType type_ = at::kFloat;
  int num_calls_ = 0;
};

}  // namespace

CheckOutcome check_collectives(const Ranks& ranks) {
  Comparison comparison(ranks);
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t size : kSizes) {
      if (ranks.is_quick && size != 3 && size != 1023) continue;
      comparison.all(size, type);
    }
  }
  if (!ranks.is_quick) comparison.all(kLargeSize, at::kFloat);
  return passed(
      fmt::format("{} calls have the same results as on the CPU", comparison.num_calls()));
}

CheckOutcome check_messages(const Ranks& ranks) {
  const int size = ranks.world_size(), rank = ranks.rank();
  if (size < 2) return not_here("one rank");
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const std::int64_t count = ranks.is_quick ? 1001 : 1000001;
  for (int round = 0; round < 10; ++round) {
    const at::Tensor mine = torch::full({count}, 1.0F, ranks.device).mul_(rank + round);
    const at::Tensor theirs = torch::full({count}, -1.0F, ranks.device);
    if (round % 2 == 0) {
      const WorkPtr received = irecv(ranks.group, theirs, previous);
      send(ranks.group, mine, next);
      received->wait();
    } else {
      for (const WorkPtr& work : batch_isend_irecv(
               ranks.group, {{Op::kSend, mine, next}, {Op::kReceive, theirs, previous}})) {
        work->wait();
      }
    }
    const at::Tensor expected = torch::full({count}, static_cast<float>(previous + round));
    if (!torch::equal((theirs * 1).cpu(), expected))
      throw CheckFailed(fmt::format("message {} from rank {} has wrong values", round, previous));
  }
  return passed();
}

// A direct copy between GPUs may hang or damage data if an IOMMU or a switch is misconfigured.
CheckOutcome check_peer_copies(const Ranks& ranks) {
  const int count = num_cuda_devices();
  if (count < 2) return not_here("one GPU");
  if (ranks.rank() != 0) return passed();
  const at::Tensor pattern = torch::arange(ranks.is_quick ? 1 << 12 : 1 << 24, at::kInt);
  for (int from = 0; from < count; ++from) {
    const at::Tensor source =
        pattern.to(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(from)));
    for (int to = 0; to < count; ++to) {
      if (to == from) continue;
      const at::Tensor copy = source.to(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(to)));
      if (torch::equal(copy.cpu(), pattern)) continue;
      CheckOutcome outcome{.name = "", .verdict = Verdict::kFail};
      outcome.text = fmt::format("a copy from GPU {} to GPU {} damaged the data", from, to);
      outcome.advice =
          "boot with iommu=pt and disable ACS on the switches, or set NCCL_P2P_DISABLE=1";
      return outcome;
    }
  }
  return passed(fmt::format("{} GPUs", count));
}

CheckOutcome check_device_0(const Ranks& ranks) {
  if (num_cuda_devices() < 2) return not_here("one GPU");
  if (ranks.device.index() == 0) return passed();
  if (!at::detail::getCUDAHooks().hasPrimaryContext(0)) return passed();
  throw CheckFailed(
      fmt::format("this rank works on {} and has used GPU 0, which then holds a "
                  "context of several hundred MB for it",
                  ranks.device.str()));
}

}  // namespace paceline::gpu_check
