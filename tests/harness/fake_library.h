#pragma once

// A communication library for tests that calls given functions, and its registration as a backend.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "paceline/engine/collectives/backends/library_list.h"

namespace paceline::harness {

struct FakeCalls {
  std::function<bool(Op op)> supports;
  std::function<void(const Collective& call, Deadline deadline)> run;
};

class FakeLibrary : public Library {
 public:
  FakeLibrary(std::string name, FakeCalls calls)
      : name_(std::move(name)), calls_(std::move(calls)) {}

  const char* transport() const override { return name_.c_str(); }
  bool supports(Op op, Dtype dtype, ReduceOp /*reduce_op*/) const override {
    return dtype == Dtype::kFloat32 && calls_.supports(op);
  }
  void run(const Collective& call, std::uint32_t /*sequence*/, Deadline deadline) override {
    calls_.run(call, deadline);
  }
  void abort() override {}

 private:
  const std::string name_;
  const FakeCalls calls_;
};

// Registers backend `name` in this process, for memory of `device`. `connect` returns the functions
// of one rank's library.
inline void register_fake_library(const std::string& name, Device device,
                                  std::function<FakeCalls(const LibraryContext&)> connect) {
  register_library({.info = {.name = name, .device = device, .available = true, .text = "a test's"},
                    .connect = [name, connect = std::move(connect)](const LibraryContext& context) {
                      return std::make_unique<FakeLibrary>(name, connect(context));
                    }});
}

// Computes in place the result of a float32 sum to which all ranks contributed the same values.
inline void sum_of_equals(const Collective& call, int world_size) {
  auto* const data = reinterpret_cast<float*>(call.output);
  for (std::size_t i = 0; data != nullptr && i < call.count; ++i) {
    data[i] *= static_cast<float>(world_size);
  }
}

}  // namespace paceline::harness
