#include "tests/engine/collectives/nccl/device_buffers.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include "paceline/engine/core/error.h"

#include "tests/harness/standins.h"

namespace paceline {
namespace {

// The place of a call on a stream.
class StreamOrder : public DeviceOrder {
 public:
  explicit StreamOrder(CudaStream stream) : api_(CudaApi::load()), stream_(stream) {
    require_cuda(api_.cudaEventCreateWithFlags(&ready_, cuda::kDisableTiming), "cudaEventCreate");
    require_cuda(api_.cudaEventRecord(ready_, stream_), "cudaEventRecord");
  }
  ~StreamOrder() override { api_.cudaEventDestroy(ready_); }
  void* ready() const override { return ready_; }
  void wait_for(void* event) const override {
    require_cuda(api_.cudaStreamWaitEvent(stream_, static_cast<CudaEvent>(event), 0),
                 "cudaStreamWaitEvent");
  }

 private:
  const CudaApi& api_;
  const CudaStream stream_;
  CudaEvent ready_ = nullptr;
};

}  // namespace

void require_cuda(int code, const char* what) { CudaApi::load().require(code, "", what); }

bool uses_real_gpus() { return std::getenv("PACELINE_TEST_REAL_GPUS") != nullptr; }

void use_standins() {
  if (!uses_real_gpus()) harness::use_standins();
}

std::string why_no_gpus(int wanted) {
  try {
    int count = 0;
    require_cuda(CudaApi::load().cudaGetDeviceCount(&count), "counting the GPUs");
    if (count >= wanted) return "";
    return std::to_string(wanted) + " GPUs are needed, one a rank; here: " + std::to_string(count);
  } catch (const Error& error) {
    return error.what();
  }
}

OnDevice::OnDevice(std::size_t bytes) : bytes_(bytes) {
  require_cuda(CudaApi::load().cudaMalloc(&data_, bytes), "cudaMalloc");
  write(std::vector<std::byte>(bytes));
}

OnDevice::~OnDevice() { CudaApi::load().cudaFree(data_); }

void OnDevice::write(const std::vector<std::byte>& values) {
  require_cuda(CudaApi::load().cudaMemcpy(data_, values.data(), bytes_, cuda::kToDevice),
               "cudaMemcpy");
}

std::vector<std::byte> OnDevice::read() const {
  std::vector<std::byte> values(bytes_);
  require_cuda(CudaApi::load().cudaMemcpy(values.data(), data_, bytes_, cuda::kToHost),
               "cudaMemcpy");
  return values;
}

TestStream::TestStream() {
  require_cuda(CudaApi::load().cudaStreamCreateWithFlags(&stream_, cuda::kNonBlocking),
               "cudaStreamCreate");
}

std::shared_ptr<const DeviceOrder> TestStream::order() const {
  return std::make_shared<StreamOrder>(stream_);
}

void TestStream::synchronize() const {
  require_cuda(CudaApi::load().cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

struct HeldStream::Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = false;
};

HeldStream::HeldStream(CudaStream stream) : gate_(std::make_shared<Gate>()) {
  auto* const launch =
      device_function<int(CudaStream, void (*)(void*), void*)>("cudaLaunchHostFunc");
  const auto wait = [](void* data) {
    const std::unique_ptr<std::shared_ptr<Gate>> gate(static_cast<std::shared_ptr<Gate>*>(data));
    std::unique_lock lock((*gate)->mutex);
    (*gate)->changed.wait(lock, [&] { return (*gate)->is_open; });
  };
  require_cuda(launch(stream, wait, new std::shared_ptr<Gate>(gate_)), "cudaLaunchHostFunc");
}

void HeldStream::release() {
  {
    const std::lock_guard lock(gate_->mutex);
    gate_->is_open = true;
  }
  gate_->changed.notify_all();
}

}  // namespace paceline
