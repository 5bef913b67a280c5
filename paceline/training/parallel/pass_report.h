#pragma once

// What each rank says beside its gradients of a pass. It travels as float32 in the last bucket,
// where every rank has a place of its own and adds zero to the others': which parameters it used,
// of which module the pass was, the hash of a part of its replica (replica_guard.h), its first
// gradient that is not finite, and its loss.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

class PassReport {
 public:
  // What one rank says.
  struct Own {
    std::vector<bool> used;    // [parameter]
    std::uint64_t module = 0;  // below 2^16
    std::uint64_t hash = 0;
    std::optional<std::size_t> not_finite;  // the first such parameter
    double loss = 0;
  };
  struct NotFinite {
    int rank = 0;
    std::size_t parameter = 0;
  };

  // Values that it takes.
  static std::size_t size(std::size_t num_parameters, int num_ranks);

  PassReport() = default;
  // `place`: size() values of the bucket.
  PassReport(at::Tensor place, std::size_t num_parameters, int rank, int num_ranks);

  void write(const Own& own);
  // Says nothing: what the bucket brought last does not go out again.
  void clear() { place_.zero_(); }
  // Of all ranks, once the bucket has been averaged, with `divisor`.
  void read(std::int64_t divisor);
  bool is_used(std::size_t parameter) const { return values_[parameter] > 0; }
  bool has_equal_hashes() const;
  // By rank.
  std::vector<std::uint64_t> modules() const;
  // Of the lowest rank that has one.
  std::optional<NotFinite> not_finite() const;
  // The sum of all ranks' losses, with the same bits on every rank.
  double loss() const;

 private:
  const float* of_rank(int rank) const;
  std::uint64_t number_at(const float* values, std::size_t count) const;

  at::Tensor place_;
  std::size_t num_parameters_ = 0;
  int rank_ = 0, num_ranks_ = 1;
  std::int64_t divisor_ = 1;
  std::vector<float> values_;
};

}  // namespace paceline
