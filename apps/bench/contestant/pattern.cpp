#include "apps/bench/contestant/pattern.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline::bench {

namespace {

// The number of elements in a table. It is prime, so that no power of two is a multiple of it, and
// small enough that memcpy of one table uses ordinary stores, as a computation that fills such
// buffers would.
constexpr std::size_t kPeriod = 509;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::size_t phase_of(std::uint64_t call) { return call * 37 % kPeriod; }

// Converts a whole number from 0 to 2^11 - 1 to an IEEE 754 half.
std::uint16_t half_of(int value) {
  if (value == 0) return 0;
  const int exponent = std::bit_width(static_cast<unsigned>(value)) - 1;
  const int fraction = (value << (10 - exponent)) & 0x3ff;
  return static_cast<std::uint16_t>((exponent + 15) << 10 | fraction);
}

double value_of_half(std::uint16_t bits) {
  const int exponent = (bits >> 10 & 0x1f) - 15;
  if (exponent == -15) return 0;
  const double magnitude = std::ldexp(1 + (bits & 0x3ff) / 1024.0, exponent);
  return bits >> 15 ? -magnitude : magnitude;
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void put_value(std::byte* to, Dtype dtype, int value) {
  switch (dtype) {
    case Dtype::kFloat32:
      return put(to, static_cast<float>(value));
    case Dtype::kFloat64:
      return put(to, static_cast<double>(value));
    case Dtype::kFloat16:
      return put(to, half_of(value));
    case Dtype::kBfloat16:
      return put(to, static_cast<std::uint16_t>(
                         std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
    case Dtype::kInt8:
    case Dtype::kUint8:
      return put(to, static_cast<std::uint8_t>(value));
    case Dtype::kInt16:
      return put(to, static_cast<std::int16_t>(value));
    case Dtype::kInt32:
      return put(to, static_cast<std::int32_t>(value));
    case Dtype::kInt64:
      return put(to, static_cast<std::int64_t>(value));
    case Dtype::kBool:
      return put(to, static_cast<std::uint8_t>(value != 0));
  }
}

}  // namespace

struct Pattern::Run {
  std::size_t begin, count;  // elements of the output
  const Table* table;
  std::size_t start;  // element of the table at `begin`
};

Pattern::Pattern(Dtype dtype, int world_size)
    : dtype_(dtype), world_size_(world_size), element_(size_of(dtype)) {
  // The largest sum stays below 128 or, with many ranks, below 257.
  const int limit = dtype == Dtype::kBool ? 2 : std::max(2, 127 / world_size + 1);
  std::vector<int> sum(kPeriod);
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<int> values(kPeriod);
    for (std::size_t k = 0; k < kPeriod; ++k) {
      const auto seed = static_cast<std::uint64_t>(rank + 1) * kPeriod + k;
      values[k] = static_cast<int>(mix(seed) % static_cast<std::uint64_t>(limit));
      sum[k] += values[k];
    }
    of_rank_.push_back(encode(values));
  }
  of_sum_ = encode(sum);
}

Pattern::Table Pattern::encode(const std::vector<int>& values) const {
  Table table(kPeriod * element_);
  for (std::size_t k = 0; k < kPeriod; ++k)
    put_value(table.data() + k * element_, dtype_, values[k]);
  return table;
}

void Pattern::write(std::span<std::byte> buffer, int rank, std::uint64_t call) const {
  const Table& table = of_rank_[static_cast<std::size_t>(rank)];
  std::size_t from = phase_of(call) * element_;
  for (std::size_t done = 0; done < buffer.size(); from = 0) {
    const std::size_t bytes = std::min(table.size() - from, buffer.size() - done);
    std::memcpy(buffer.data() + done, table.data() + from, bytes);
    done += bytes;
  }
}

std::vector<Pattern::Run> Pattern::expected(const Collective& collective, int rank,
                                            std::uint64_t call) const {
  const std::size_t count = block_count(collective);
  const auto world = static_cast<std::size_t>(world_size_);
  const std::size_t phase = phase_of(call);
  const std::size_t own = phase + static_cast<std::size_t>(rank) * count;  // this rank's block
  const Op op = collective.op;
  const std::size_t start = gives_blocks(op) ? own : phase;
  if (reduces(op)) return {{0, count, &of_sum_, start}};
  if (traits_of(op).has(kOnlyRootGives)) {
    return {{0, count, &of_rank_[static_cast<std::size_t>(collective.root)], start}};
  }
  if (op == Op::kSend) {
    return {{0, count, &of_rank_[(static_cast<std::size_t>(rank) + world - 1) % world], phase}};
  }
  std::vector<Run> runs;
  for (std::size_t r = 0; r < world && gets_blocks(op); ++r) {
    runs.push_back({r * count, count, &of_rank_[r], start});
  }
  return runs;
}

std::optional<Pattern::Difference> Pattern::compare(const Collective& collective, int rank,
                                                    std::uint64_t call) const {
  if (elements_out(collective, rank, world_size_) == 0) return {};
  for (const Run& run : expected(collective, rank, call)) {
    std::size_t from = run.start % kPeriod;
    for (std::size_t done = 0; done < run.count; from = 0) {
      const std::size_t count = std::min(kPeriod - from, run.count - done);
      const std::byte* found = collective.output + (run.begin + done) * element_;
      const std::byte* wanted = run.table->data() + from * element_;
      if (std::memcmp(found, wanted, count * element_) != 0) {
        std::size_t i = 0;
        while (std::memcmp(found + i * element_, wanted + i * element_, element_) == 0) ++i;
        return Difference{run.begin + done + i, value_at(found + i * element_),
                          value_at(wanted + i * element_)};
      }
      done += count;
    }
  }
  return {};
}

double Pattern::value_at(const std::byte* element) const {
  switch (dtype_) {
    case Dtype::kFloat32:
      return get<float>(element);
    case Dtype::kFloat64:
      return get<double>(element);
    case Dtype::kFloat16:
      return value_of_half(get<std::uint16_t>(element));
    case Dtype::kBfloat16:
      return std::bit_cast<float>(std::uint32_t(get<std::uint16_t>(element)) << 16);
    case Dtype::kInt8:
      return get<std::int8_t>(element);
    case Dtype::kInt16:
      return get<std::int16_t>(element);
    case Dtype::kInt32:
      return get<std::int32_t>(element);
    case Dtype::kInt64:
      return static_cast<double>(get<std::int64_t>(element));
    default:
      return get<std::uint8_t>(element);
  }
}

}  // namespace paceline::bench
