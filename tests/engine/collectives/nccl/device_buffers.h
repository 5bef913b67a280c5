#pragma once

// Device memory and streams for tests of backend nccl, through the tables of functions that the
// backend uses itself: on the stand-ins for NVIDIA's libraries or, if PACELINE_TEST_REAL_GPUS is
// set, on GPUs.

#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/backends/nccl/cuda_api.h"
#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/group/engine_group.h"

namespace paceline {

bool uses_real_gpus();
// Lets this process, and its children, load the stand-ins, unless the test is to use GPUs. Loads
// nothing.
void use_standins();
// The reason why `wanted` GPUs cannot be used here; empty when they can. Loads the CUDA runtime.
std::string why_no_gpus(int wanted);

// Throws the Error of an error code of CUDA.
void require_cuda(int code, const char* what);

// A buffer on the current device, filled with zeros.
class OnDevice {
 public:
  explicit OnDevice(std::size_t bytes);
  explicit OnDevice(const std::vector<std::byte>& values) : OnDevice(values.size()) {
    write(values);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice();

  Buffer buffer(Dtype dtype) const {
    return {data_, bytes_ / size_of(dtype), dtype, Device::kCuda};
  }
  void write(const std::vector<std::byte>& values);
  std::vector<std::byte> read() const;

 private:
  const std::size_t bytes_;
  void* data_ = nullptr;
};

// A stream of the program.
class TestStream {
 public:
  TestStream();
  CudaStream get() const { return stream_; }
  // The place of a call after the work that the stream has now. Waits make this stream wait.
  std::shared_ptr<const DeviceOrder> order() const;
  void synchronize() const;

 private:
  CudaStream stream_ = nullptr;
};

// The function of the stand-in libcudart or, for cudaLaunchHostFunc and the like, of any runtime.
template <class Function>
Function* device_function(const char* name) {
  return reinterpret_cast<Function*>(CudaApi::load().library.find(name));
}

// Starts an all-reduce in place whose place among the device's work is `options.order`.
inline WorkPtr queue_all_reduce(ProcessGroup& group, Buffer buffer, ReduceOp reduce_op,
                                const CallOptions& options) {
  return engine(group).start(
      {.op = Op::kAllReduce, .input = buffer, .output = buffer, .reduce_op = reduce_op}, options);
}

// Holds a stream until release() or its end: the work that is queued behind it waits.
class HeldStream {
 public:
  explicit HeldStream(CudaStream stream);
  ~HeldStream() { release(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void release();

 private:
  struct Gate;
  std::shared_ptr<Gate> gate_;
};

}  // namespace paceline
