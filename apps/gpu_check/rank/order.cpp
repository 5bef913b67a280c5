// Collectives between long kernels on several streams: a missing wait leads to wrong sums.

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/collectives.h"

#include "apps/gpu_check/rank/ranks.h"

namespace paceline::gpu_check {
namespace {

constexpr std::int64_t kCount = 100001;

// A sequence of matrix products that takes about the given time.
class LongWork {
 public:
  LongWork(const Ranks& ranks, std::int64_t width, std::chrono::milliseconds time)
      : width_(width),
        matrix_(torch::full({width, width}, 1.0 / static_cast<double>(width), ranks.device)) {
    one();
    wait_for_device(ranks, "the first matrix product");
    const auto begin = std::chrono::steady_clock::now();
    one();
    wait_for_device(ranks, "a matrix product");
    const std::chrono::duration<double> once = std::chrono::steady_clock::now() - begin;
    const std::chrono::duration<double> wanted = time;
    repeats_ = std::clamp(static_cast<int>(wanted / once), 1, 200);
  }

  // Queues the work on the current stream and returns its result, 1. The result is exact, because
  // all numbers are powers of two.
  at::Tensor one() const {
    at::Tensor product = matrix_;
    for (int i = 0; i < repeats_; ++i) product = product.matmul(matrix_);
    return product.select(0, 0).select(0, 0) * width_;
  }

 private:
  const std::int64_t width_;
  const at::Tensor matrix_;
  int repeats_ = 1;
};

class OrderCheck {
 public:
  explicit OrderCheck(const Ranks& ranks)
      : ranks_(ranks),
        work_(ranks, ranks.is_quick ? 256 : 4096,
              std::chrono::milliseconds(ranks.is_quick ? 5 : 30)),
        first_(pool_stream()),
        second_(pool_stream()) {}

  void run() {
    work_before();
    work_after();
    memory_reused();
    input_released();
    many_in_flight();
  }

 private:
  c10::Stream pool_stream() const {
    return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(ranks_.device, false);
  }

  // This rank's term of the sum. The device computes its values only after long work.
  at::Tensor late_part() const {
    return (work_.one() * (ranks_.rank() + 1)).expand({kCount}).clone();
  }
  double sum() const { return ranks_.world_size() * (ranks_.world_size() + 1) / 2.0; }

  void require(const at::Tensor& found, double expected, const char* what) const {
    const at::Tensor values = found.cpu();
    if (torch::equal(values, torch::full_like(values, expected))) return;
    throw CheckFailed(
        fmt::format("{}: {} instead of {}", what, values.min().item<double>(), expected));
  }

  void work_before() const {
    const c10::StreamGuard guard(first_);
    const at::Tensor part = late_part();
    all_reduce(ranks_.group, part);
    require(part + 1, sum() + 1, "a collective did not wait for the work before it");
  }

  // Makes the call on one stream, and waits for it on another, busy stream.
  void work_after() const {
    at::Tensor part;
    WorkPtr work;
    {
      const c10::StreamGuard guard(first_);
      part = late_part();
      work = all_reduce(ranks_.group, part, ReduceOp::kSum, {.async_op = true});
    }
    const c10::StreamGuard guard(second_);
    const at::Tensor own = work_.one();
    work->wait();
    require(part * 2 + own, sum() * 2 + 1, "the work after a collective did not wait for it");
  }

  void memory_reused() const {
    const c10::StreamGuard guard(first_);
    const at::Tensor part = late_part();
    const WorkPtr work = all_reduce(ranks_.group, part, ReduceOp::kSum, {.async_op = true});
    work->wait();
    const at::Tensor result = part.clone();
    part.fill_(-1);
    require(result, sum(), "memory was written before a collective had ended");
  }

  void input_released() const {
    const c10::StreamGuard guard(first_);
    const at::Tensor all = torch::empty({kCount * ranks_.world_size()}, ranks_.device);
    WorkPtr work;
    {
      const at::Tensor part = late_part();
      work = all_gather_into_tensor(ranks_.group, all, part, {.async_op = true});
    }
    const at::Tensor other = torch::full({kCount}, -7.0F, ranks_.device);  // may get part's memory
    work->wait();
    for (int rank = 0; rank < ranks_.world_size(); ++rank) {
      require(all.narrow(0, rank * kCount, kCount), rank + 1,
              "the input of a collective was released too early");
    }
    require(other, -7, "memory of a collective was given to another tensor");
  }

  void many_in_flight() const {
    const c10::StreamGuard guard(first_);
    std::vector<at::Tensor> parts;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      parts.push_back(late_part().mul_(i));
      works.push_back(all_reduce(ranks_.group, parts.back(), ReduceOp::kSum, {.async_op = true}));
    }
    for (const WorkPtr& work : works) work->wait();
    for (std::size_t i = 0; i < parts.size(); ++i)
      require(parts[i] * 1, sum() * static_cast<double>(i), "one of 20 calls has a wrong sum");
  }

  const Ranks& ranks_;
  const LongWork work_;
  const c10::Stream first_, second_;
};

}  // namespace

CheckOutcome check_order(const Ranks& ranks) {
  OrderCheck check(ranks);
  const int rounds = ranks.is_quick ? 1 : 5;
  for (int round = 0; round < rounds; ++round) check.run();
  return passed();
}

}  // namespace paceline::gpu_check
