#pragma once

// Detects damaged memory in the state and the parameters of an optimizer. Each step computes a
// checksum (the sum of the 32-bit words modulo 2^32) of everything that it writes, and the next
// step compares it with the sum of what it reads; kernels compute the sums in their single pass
// over memory. Parameters without a gradient, and the parts that other ranks update, are read for
// this check alone.
//
// A program may write to parameters between steps: WriteMark (training/tensor/tensor_marks.h)
// notices operations of LibTorch and set_data(); other writes must be announced with
// expect_writes().
//
// Parameters on a CUDA device are not checked: the host would have to wait for the device.
//
// Thread safety: none.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/optim/parameters/parameter_home.h"
#include "paceline/training/optim/parameters/parameter_rows.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline::optim {

class GuardedState {
 public:
  static constexpr std::size_t kMaxStates = 2;
  // Indices into a parameter's checksums: first the float32 values that kernels update (the
  // parameter itself, or the master of a 16-bit parameter), then the states, last the 16-bit
  // parameter.
  static constexpr std::size_t kValues = 0;
  static constexpr std::size_t kFirstState = 1;
  static constexpr std::size_t kRounded = kFirstState + kMaxStates;
  using Sums = std::array<WordSums, kRounded + 1>;
  static void merge(Sums& sums, const Sums& more);

  // `num_steps` is indexed by parameter, and used in errors. Requires: both arguments outlive this
  // object.
  GuardedState(const ParameterRows& rows, const std::vector<std::int64_t>& num_steps)
      : rows_(rows), num_steps_(num_steps) {}
  // Call it after rows were made or moved. Drops the checksums of all parameters except the first
  // `num_kept`. Requires: `home` lives until the next call, or as long as this object.
  void begin(const ParameterHome& home, std::size_t num_kept = 0);

  // The next three functions throw DamagedState, which names the tensor and the step. Call
  // compare() after a pass over all elements of a parameter that this rank updates, with the
  // checksums of the values that the pass read and wrote.
  void compare(std::size_t parameter, const Sums& sums);
  // Call it before the updates of a step: verifies everything that the updates do not read.
  void verify_unread(const std::vector<OrderedGradient>& gradients) const;
  void verify() const;

  // Call it after a step, once this rank has received the parts that the other ranks updated.
  void remember(const std::vector<OrderedGradient>& gradients);
  // Accepts the state and the parameters as they are now.
  void adopt();
  // The result keeps `writing` alive; when it is destroyed, the parameters are accepted with the
  // values that they have then.
  std::shared_ptr<void> expect_writes(std::shared_ptr<void> writing) const;

 private:
  bool is_unwritten(std::size_t parameter) const;
  bool is_state(std::size_t parameter, std::size_t place) const;
  std::size_t place_of_parameter(std::size_t parameter) const;
  std::size_t place_of_state(std::size_t state) const;
  void verify_own_state(std::size_t parameter) const;
  void verify_parameter(std::size_t parameter, bool with_own) const;
  std::uint32_t sum_of_own_elements(std::size_t parameter) const;
  std::string described(std::size_t parameter, std::size_t place) const;
  [[noreturn]] void fail_damaged(std::size_t parameter, const std::string& what,
                                 std::uint32_t expected, std::uint32_t found) const;

  const ParameterRows& rows_;
  const std::vector<std::int64_t>& num_steps_;
  const ParameterHome* home_ = nullptr;
  bool is_on_cpu_ = true;
  std::vector<std::array<std::uint32_t, kRounded + 1>> sums_;  // [parameter], own elements
  std::vector<std::uint32_t> other_sums_;  // [parameter], over other ranks' parts
  // [parameter]: a mark of the parameter as the last step left it; the checksums are valid until
  // the parameter is written to. Shared with the results of expect_writes().
  std::shared_ptr<std::vector<WriteMark>> marks_ = std::make_shared<std::vector<WriteMark>>();
};

}  // namespace paceline::optim
