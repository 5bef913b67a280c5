#pragma once

// Elements for tests of collectives: different on every rank and at every index, and exact in the
// arithmetic of every type, so that every order of addition gives the same bits.

#include <array>
#include <cstring>
#include <vector>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/core/dtype_traits.h"

#include "tests/engine/collectives/quick_random.h"

namespace paceline {

constexpr std::size_t kPeriod = 5;  // value_at() repeats itself after so many elements

template <class T>
T value_at(int rank, std::size_t index) {
  return static_cast<T>((index * 7 + static_cast<std::size_t>(rank) * 13) % kPeriod);
}

// `count` elements of a sequence that repeats itself after kPeriod elements.
template <class T, class At>
std::vector<T> repeated(std::size_t count, const At& at) {
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = i < kPeriod ? at(i) : result[i - kPeriod];
  return result;
}

template <class T>
std::vector<T> values(int rank, std::size_t count, std::size_t first = 0) {
  return repeated<T>(count, [&](std::size_t i) { return value_at<T>(rank, first + i); });
}

template <class T>
std::vector<T> total(int world, std::size_t count, std::size_t first = 0) {
  return repeated<T>(count, [&](std::size_t i) {
    T sum{};
    for (int rank = 0; rank < world; ++rank)
      sum = static_cast<T>(sum + value_at<T>(rank, first + i));
    return sum;
  });
}

// Values from -1 to 1, so that a different order of addition gives different bits.
inline std::vector<float> random_values(int rank, std::size_t count) {
  QuickRandom random(static_cast<std::uint64_t>(rank) * 31 + count);
  std::vector<float> data(count);
  for (auto& value : data) value = random.signed_fraction();
  return data;
}

// value_at() as the bytes of any type.
inline std::vector<std::byte> values_of(Dtype dtype, int rank, std::size_t count) {
  constexpr std::array<std::uint16_t, 5> kHalf = {0, 0x3c00, 0x4000, 0x4200, 0x4400};
  constexpr std::array<std::uint16_t, 5> kBrain = {0, 0x3f80, 0x4000, 0x4040, 0x4080};
  std::vector<std::byte> bytes(count * size_of(dtype));
  const auto fill = [&](auto convert) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto element = convert(value_at<std::size_t>(rank, i));
      std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element);
    }
  };
  switch (dtype) {
    case Dtype::kFloat32:
      fill([](std::size_t value) { return static_cast<float>(value); });
      break;
    case Dtype::kFloat64:
      fill([](std::size_t value) { return static_cast<double>(value); });
      break;
    case Dtype::kFloat16:
      fill([&](std::size_t value) { return kHalf[value]; });
      break;
    case Dtype::kBfloat16:
      fill([&](std::size_t value) { return kBrain[value]; });
      break;
    case Dtype::kInt16:
      fill([](std::size_t value) { return static_cast<std::int16_t>(value); });
      break;
    case Dtype::kInt32:
      fill([](std::size_t value) { return static_cast<std::int32_t>(value); });
      break;
    case Dtype::kInt64:
      fill([](std::size_t value) { return static_cast<std::int64_t>(value); });
      break;
    case Dtype::kBool:
      fill([](std::size_t value) { return static_cast<std::uint8_t>(value > 2); });
      break;
    default:
      fill([](std::size_t value) { return static_cast<std::uint8_t>(value); });
  }
  return bytes;
}

// The reduction of all ranks' values_of().
inline std::vector<std::byte> reduced(Dtype dtype, ReduceOp op, int world, std::size_t count) {
  std::vector<std::vector<std::byte>> all;
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < world; ++rank) all.push_back(values_of(dtype, rank, count));
  for (const auto& one : all) sources.push_back(one.data());
  std::vector<std::byte> result(count * size_of(dtype));
  reduce(sources, result.data(), count, dtype, op);
  return result;
}

}  // namespace paceline
