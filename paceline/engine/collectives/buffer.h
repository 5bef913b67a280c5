#pragma once

// The memory that collectives read and fill: views of contiguous elements (Buffer, ConstBuffer),
// and memory that all ranks of a host map (SymmetricBuffer).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/buffer_mistakes.h"
#include "paceline/engine/core/dtype.h"

namespace paceline {

// The Dtype of a C++ type. float16 and bfloat16 have no C++ type; callers pass their Dtype.
template <class T>
constexpr Dtype dtype_of() {
  return detail::require_dtype<std::remove_cv_t<T>>();
}

// The device that owns the memory. The numbers are part of the wire format.
enum class Device : std::uint8_t { kCpu = 0, kCuda = 1 };

// A typed view of elements that a collective fills. A value; it owns nothing.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  Dtype dtype = Dtype::kUint8;
  Device device = Device::kCpu;

  Buffer() = default;
  Buffer(void* first, std::size_t elements, Dtype type, Device where = Device::kCpu)
      : data(static_cast<std::byte*>(first)), count(elements), dtype(type), device(where) {}
  template <class T, std::size_t Extent>
    requires(!std::is_const_v<T>)
  Buffer(std::span<T, Extent> elements)  // NOLINT: the conversion is the point
      : Buffer(elements.data(), elements.size(), dtype_of<T>()) {}

  std::size_t bytes() const { return count * detail::size_of(dtype); }

 public:  // internal
  template <detail::NotWritable T>
  Buffer(T&& /*mistake*/) {  // NOLINT: the conversion gives an error that says what to write
    if constexpr (detail::kIsConstant<T>)
      static_assert(sizeof(T) == 0,
                    "the operation writes to this argument, so it must not be const");
    else
      detail::explain_mistake<std::remove_cvref_t<T>, std::is_reference_v<T>>();
  }
};

// A typed view of elements that a collective reads.
struct ConstBuffer {
  const std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  Dtype dtype = Dtype::kUint8;
  Device device = Device::kCpu;

  ConstBuffer() = default;
  ConstBuffer(const void* first, std::size_t elements, Dtype type, Device where = Device::kCpu)
      : data(static_cast<const std::byte*>(first)), count(elements), dtype(type), device(where) {}
  template <class T, std::size_t Extent>
  ConstBuffer(std::span<T, Extent> elements)  // NOLINT: the conversion is the point
      : ConstBuffer(elements.data(), elements.size(), dtype_of<T>()) {}
  ConstBuffer(const Buffer& buffer)  // NOLINT: the conversion is the point
      : ConstBuffer(buffer.data, buffer.count, buffer.dtype, buffer.device) {}

  std::size_t bytes() const { return count * detail::size_of(dtype); }

 public:  // internal
  template <detail::NotReadable T>
  ConstBuffer(T&& /*mistake*/) {  // NOLINT: gives an error that says what to write
    detail::explain_mistake<std::remove_cvref_t<T>, std::is_reference_v<T>>();
  }
};

// Memory that every rank of a group has allocated with the same size. If all ranks are on one host,
// they map each other's memory, so collectives on a SymmetricBuffer read the peers' bytes in place,
// without copies.
//
// A value that shares ownership: the memory lives as long as any copy of it, even after the group
// has ended.
class SymmetricBuffer {
 public:
  SymmetricBuffer() = default;
  // `blocks`: the address of each rank's block in this process (see of()). `rank`: this rank.
  // `owner` keeps the blocks alive. `has_failed` becomes true when the group fails.
  SymmetricBuffer(std::vector<std::byte*> blocks, int rank, std::size_t bytes,
                  std::shared_ptr<void> owner, std::shared_ptr<const std::atomic<bool>> has_failed)
      : blocks_(std::move(blocks)),
        data_(of(rank)),
        bytes_(bytes),
        owner_(std::move(owner)),
        has_failed_(std::move(has_failed)) {}

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // The address of the block of `rank` in this process; null for other ranks if the ranks share no
  // memory. Collectives synchronise a writer with the owner of the block.
  std::byte* of(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  // This rank's block as elements of type T. It is page-aligned, and zeroed when it is allocated.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  const std::shared_ptr<void>& owner() const { return owner_; }
  // False once the group has failed in any operation: a late rank may still write results into the
  // memory, so it must not be used for anything else. May be called from any thread.
  bool is_live() const { return has_failed_ != nullptr && !*has_failed_; }

 private:
  std::vector<std::byte*> blocks_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> owner_;
  std::shared_ptr<const std::atomic<bool>> has_failed_;
};

}  // namespace paceline
