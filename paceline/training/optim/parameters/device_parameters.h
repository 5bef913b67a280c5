#pragma once

// Parameters on a CUDA device of which each rank keeps only its part.
//
// Before an operation of LibTorch reads a parameter (operation_watch.h), the parameter's unit (a
// group of parameters) is gathered from all ranks into a pool of fixed size, and the storages of
// the unit's parameters point into the pool. At the same time the units that were read next in the
// previous step are requested, as far as there is room in the pool; the least recently used units
// are released. The storages of a unit that is not gathered have null pointers.
//
// Nothing makes the host wait for the device. Gathers start on a stream of their own, and wait only
// for the steps that wrote the parts and for the operations that read the memory's former contents.
// Any other stream waits for a unit before its first operation that reads the unit.
//
// So an operation that reads a parameter is collective: all ranks must read the units in the same
// order. Otherwise all ranks get an error. The operation cannot throw this error: it continues with
// undefined values, and require_whole() throws.
//
// The pool has room for any unit while any other unit is in use. An operation that reads more
// units, and whole(), take further memory from LibTorch.
//
// ReadOrder predicts which units operations read next, and RangePool determines where in the pool a
// unit lies while it is whole.
//
// Thread safety: one thread runs the model.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/optim/parameters/operation_watch.h"

namespace paceline::optim {

// Predicts the units of parameters that operations read next, from the order in which they read
// units in the previous step.
class ReadOrder {
 public:
  // Call it when an operation reads these units. Returns false if the operation before it has read
  // the same units.
  bool note(std::span<const std::size_t> units);
  // The units that were read next in the previous step, the nearest first; at most kAhead.
  std::span<const std::size_t> next() const;
  void begin_step();

 private:
  static constexpr std::size_t kAhead = 8;
  // The number of entries of the previous step's order, after the one of the last unit, that are
  // searched for the next unit.
  static constexpr std::size_t kWindow = 64;
  static constexpr std::size_t kLongest = 1U << 16U;  // the most entries of an order that are kept

  bool find(std::size_t unit, std::size_t from);

  std::vector<std::size_t> last_;      // the units of the last operation
  std::vector<std::size_t> order_;     // the order of this step
  std::vector<std::size_t> expected_;  // the order of the previous step
  std::size_t at_ = 0;                 // index in expected_ after the entry of the last unit
};

// Allocates ranges of a block of memory; it knows only their offsets. The same calls give the same
// ranges on every rank.
class RangePool {
 public:
  static constexpr std::size_t kAlignment = 512;  // as in LibTorch's allocators for CUDA

  static constexpr std::size_t rounded(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  explicit RangePool(std::size_t bytes);

  // Returns the offset of a range; empty if no hole is large enough. Small ranges come from the end
  // of the block and large ones from its beginning, so that small ranges, which may stay for a long
  // time, do not divide the hole for large ones.
  std::optional<std::size_t> take(std::size_t bytes);
  void give_back(std::size_t offset);

 private:
  const std::size_t size_;
  std::map<std::size_t, std::size_t> holes_;  // [offset]: bytes; neighbours are merged
  std::map<std::size_t, std::size_t> taken_;  // [offset]: bytes
};

// Returns memory for gathered units, as bytes: for the pool, or for a unit that does not fit in it.
// Errors as in zeros_on_device().
at::Tensor zeros_for_gathers(ProcessGroup& group, c10::Device device, std::size_t bytes,
                             const std::string& what);
// Gives the tensor's storage other memory, which it does not own; its size stays the same.
void set_address(const at::Tensor& tensor, void* address);

class DeviceParameters : public WatchedUnits,
                         public std::enable_shared_from_this<DeviceParameters> {
 public:
  struct Unit {
    at::Tensor own;  // this rank's part, as a row; all parts have the same size
    std::vector<at::Tensor> parameters;
    std::vector<std::size_t> offsets;  // [parameter]: its first byte in the unit
    std::string name;                  // name of the first parameter: "parameter fc1.weight"
  };

  // Requires: the parameters' storages have null pointers. `group`: all ranks, for gathers only.
  // `block`: the memory of the pool, with room for the largest unit.
  DeviceParameters(std::shared_ptr<ProcessGroup> group, std::vector<Unit> units, at::Tensor block);
  ~DeviceParameters() override;
  DeviceParameters(const DeviceParameters&) = delete;
  DeviceParameters& operator=(const DeviceParameters&) = delete;

  void before_read(std::span<const std::size_t> units) override;
  // While a result lives, all units are whole, and this object lives. The call is collective.
  // Requires: a shared_ptr owns this object.
  std::shared_ptr<void> whole();
  // Copies this rank's parts of the units that are whole to Unit::own, because the program has
  // written to the parameters.
  void keep_writes();
  // Releases all units, because the current stream is about to change Unit::own. Error(kInvalid) if
  // the program has written to a parameter.
  void forget();
  // Throws the error, if any, that kept a unit from becoming whole or was found at its release.
  void require_whole() const;

 private:
  // A unit that is whole or is being gathered.
  struct Gathered {
    at::Tensor memory;                  // the unit as a row
    std::optional<std::size_t> place;   // offset in the pool; empty: memory of its own
    WorkPtr work;                       // null: the gather has ended
    StreamEvent arrived;                // set once `work` is null
    StreamJoin readers;                 // the streams that have waited for the unit and read it
    std::vector<std::uint32_t> writes;  // [parameter]: the number of writes that LibTorch counts
  };

  std::size_t bytes_of(std::size_t unit) const;
  void release_extra(std::span<const std::size_t> needed);
  bool make_room(std::size_t unit, std::span<const std::size_t> kept);
  void gather(std::size_t unit, const at::Tensor& memory);
  void bring(std::size_t unit, std::span<const std::size_t> needed);
  void arrive(std::size_t unit);
  void prefetch(std::span<const std::size_t> needed);
  void release(std::size_t unit);
  void let_go();
  void set_memory(std::size_t unit, const at::Tensor& memory) const;
  void note_error();
  std::vector<std::uint32_t> count_writes(std::size_t unit) const;

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<Unit> units_;
  const c10::Device device_;
  const c10::Stream stream_;  // the stream of gathers
  RangePool pool_;
  at::Tensor block_;                               // the memory of the pool, as bytes
  std::vector<std::optional<Gathered>> gathered_;  // [unit]
  std::vector<std::size_t> used_;  // gathered units; the most recently used unit is last
  ReadOrder order_;
  bool parts_changed_ = true;  // the current stream has written to Unit::own since the last gather
  int num_holders_ = 0;        // the number of living results of whole()
  std::exception_ptr error_;
};

}  // namespace paceline::optim
