#include "tests/engine/collectives/nccl/staged_nccl.h"

#include <memory>
#include <optional>

#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/backends/nccl/cuda_api.h"
#include "paceline/engine/core/dtype_traits.h"

#include "tests/engine/collectives/nccl/device_buffers.h"

namespace paceline {
namespace {

struct FreeOnDevice {
  void operator()(std::byte* data) const { CudaApi::load().cudaFree(data); }
};
using DeviceBytes = std::unique_ptr<std::byte, FreeOnDevice>;

// A copy of a buffer; null for none.
DeviceBytes copy_to_device(const std::byte* data, std::size_t bytes) {
  if (data == nullptr || bytes == 0) return nullptr;
  const CudaApi& api = CudaApi::load();
  void* copy = nullptr;
  require_cuda(api.cudaMalloc(&copy, bytes), "cudaMalloc");
  DeviceBytes held(static_cast<std::byte*>(copy));
  require_cuda(api.cudaMemcpy(copy, data, bytes, cuda::kToDevice), "cudaMemcpy");
  return held;
}

class StagedNccl : public Library {
 public:
  explicit StagedNccl(const LibraryContext& context)
      : rank_(context.rank), world_size_(context.world_size()), nccl_(connect_nccl(context)) {
    require_cuda(CudaApi::load().cudaGetDevice(&device_), "cudaGetDevice");
  }

  const char* transport() const override { return nccl_->transport(); }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const override {
    return nccl_->supports(op, dtype, reduce_op);
  }
  void abort() override { nccl_->abort(); }

  // Elements of the output that the call does not write keep their values, because the output is
  // copied to the device as well. Buffers that share memory here also share it on the device.
  void run(const Collective& call, std::uint32_t sequence, Deadline deadline) override {
    const CudaDeviceGuard guard(CudaApi::load(), device_, "");
    const std::size_t element = size_of(call.dtype);
    const std::size_t input_bytes = element * input_count(call, rank_, world_size_);
    const std::size_t output_bytes = element * output_count(call, rank_, world_size_);
    const bool has_both = call.input != nullptr && call.output != nullptr;
    const bool input_within_output = has_both && call.input >= call.output &&
                                     call.input + input_bytes <= call.output + output_bytes;
    const bool output_within_input = has_both && !input_within_output &&
                                     call.output >= call.input &&
                                     call.output + output_bytes <= call.input + input_bytes;
    const DeviceBytes input =
        input_within_output ? nullptr : copy_to_device(call.input, input_bytes);
    const DeviceBytes output =
        output_within_input ? nullptr : copy_to_device(call.output, output_bytes);
    Collective staged = call;
    staged.device = Device::kCuda;
    // NCCL divides by the number of ranks only; for CUDA memory a group refuses other divisors.
    const bool has_divisor = call.reduce_op == ReduceOp::kMean && call.divisor != 0;
    if (has_divisor) staged.reduce_op = ReduceOp::kSum;
    staged.input = input_within_output ? output.get() + (call.input - call.output) : input.get();
    staged.output = output_within_input ? input.get() + (call.output - call.input) : output.get();
    nccl_->run(staged, sequence, deadline);
    if (staged.output == nullptr) return;
    require_cuda(
        CudaApi::load().cudaMemcpy(call.output, staged.output, output_bytes, cuda::kToHost),
        "cudaMemcpy");
    if (has_divisor) finish_mean(call, rank_, world_size_);
  }

 private:
  const int rank_, world_size_;
  int device_ = 0;
  std::unique_ptr<Library> nccl_;
};

}  // namespace

void register_staged_nccl() {
  register_library({.info = {.name = kStagedNccl,
                             .device = Device::kCpu,
                             .available = true,
                             .text = "NCCL, from copies",
                             .advice = ""},
                    .connect = [](const LibraryContext& context) -> std::unique_ptr<Library> {
                      return std::make_unique<StagedNccl>(context);
                    }});
}

}  // namespace paceline
