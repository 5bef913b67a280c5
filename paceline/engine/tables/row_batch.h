#pragma once

// The distinct ids of a batch, in the order in which they first occur, and their positions. So the
// gradients of an id that repeats are added in the order of the batch, and the batch changes each
// row once. Run the checks below before any use of a batch.
//
// Thread safety: the checks are pure functions; RowBatch has none. A RowBatch may be used again; it
// then keeps its memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/tables/row_options.h"

namespace paceline::tables {

// The worker, its operation and the table, as error messages name them.
struct BatchUse {
  const std::string& worker;
  const char* operation;
  const std::string& table;
  std::uint32_t width = 0;
};

// The checks throw Error(kInvalid). The number of floats must be num_ids times the width.
void check_size(const BatchUse& use, std::size_t num_ids, std::size_t num_floats);
void check_finite(const BatchUse& use, Id id, std::size_t place, const float* gradient);
// Names the first row whose gradient is not finite.
void check_finite(const BatchUse& use, std::span<const Id> ids, std::span<const float> gradients);

class RowBatch {
 public:
  // Requires: fewer than 2^32 - 1 ids, which live as long as this object is used.
  void assign(std::span<const Id> ids);

  std::size_t size() const { return first_.size(); }  // distinct ids
  std::size_t num_places() const { return ids_.size(); }
  Id id(std::size_t i) const { return ids_[first_[i]]; }
  // The index, among the distinct ids, of the id at a position of the batch.
  std::size_t index_of(std::size_t place) const { return index_[place]; }
  bool contains(Id id) const;
  // The sum of the gradients of the i-th id, `width` floats: in `gradients` if the id occurs once,
  // otherwise in `sum`.
  const float* gradient(std::size_t i, std::span<const float> gradients, std::uint32_t width,
                        std::vector<float>& sum) const;
  // Calls `visit` with each position of the i-th id, in order.
  template <class Visit>
  void for_places(std::size_t i, Visit visit) const {
    for (std::uint32_t place = first_[i]; place != kNone; place = next_[place]) visit(place);
  }
  // A hash of the ids: tells batches with different ids apart.
  std::uint64_t digest() const { return digest_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::span<const Id> ids_;
  std::vector<std::uint32_t> first_;  // where the i-th id occurs first
  std::vector<std::uint32_t> last_;   // where the i-th id occurs last
  std::vector<std::uint32_t> next_;   // the next position of the same id
  std::vector<std::uint32_t> index_;  // index_of() each position
  std::vector<std::uint32_t> table_;  // hash table of the indices into first_
  std::uint64_t digest_ = 0;
};

}  // namespace paceline::tables
