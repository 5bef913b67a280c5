#include "paceline/checkpoint/row_major.h"

#include <algorithm>
#include <cstring>

namespace paceline {
namespace {

struct Dim {
  std::size_t size = 1;
  std::size_t in_memory = 1;  // strides, in elements
  std::size_t in_whole = 1;
};

// As they lie in memory, the innermost last; at least one.
std::vector<Dim> dims_in_memory(const std::vector<std::int64_t>& shape,
                                const std::vector<std::int64_t>& strides) {
  std::vector<Dim> dims;
  std::size_t row_major = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    const auto size = static_cast<std::size_t>(shape[i]);
    // The stride of a dimension of one element says nothing.
    if (size != 1) dims.push_back({size, static_cast<std::size_t>(strides[i]), row_major});
    row_major *= size;
  }
  if (dims.empty()) dims.emplace_back();
  std::ranges::sort(dims, std::ranges::greater(), &Dim::in_memory);
  return dims;
}

template <std::size_t kBytes>
void scatter(std::byte* whole, std::span<const std::byte> run, std::size_t first,
             const std::vector<Dim>& dims) {
  const Dim inner = dims.back();
  while (!run.empty()) {
    std::size_t place = 0;
    std::size_t rest = first;
    for (const Dim& dim : dims) {
      place += rest / dim.in_memory * dim.in_whole;
      rest %= dim.in_memory;
    }
    const std::size_t count = std::min(inner.size - first % inner.size, run.size() / kBytes);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(whole + (place + i * inner.in_whole) * kBytes, run.data() + i * kBytes, kBytes);
    }
    first += count;
    run = run.subspan(count * kBytes);
  }
}

}  // namespace

void copy_to_row_major(std::byte* whole, std::span<const std::byte> run, std::size_t first,
                       std::size_t element, const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& strides) {
  const auto dims = dims_in_memory(shape, strides);
  switch (element) {
    case 1:
      return scatter<1>(whole, run, first, dims);
    case 2:
      return scatter<2>(whole, run, first / 2, dims);
    case 4:
      return scatter<4>(whole, run, first / 4, dims);
    default:
      return scatter<8>(whole, run, first / 8, dims);
  }
}

}  // namespace paceline
