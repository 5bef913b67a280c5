#pragma once

// Measures how much memory is backed by physical pages.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <set>
#include <span>
#include <stdexcept>
#include <string>

#include <sys/mman.h>

namespace paceline::harness {

inline constexpr std::size_t kPageBytes = 4096;

// The bytes of all pages that overlap the ranges and are in memory; each page counts once. A
// page that processes share counts if any of them has touched it.
template <class Ranges>
std::size_t resident_bytes(const Ranges& ranges) {
  std::set<std::uintptr_t> pages;
  for (const std::span<const std::byte> range : ranges) {
    const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
    for (auto page = begin / kPageBytes; page * kPageBytes < begin + range.size(); ++page)
      pages.insert(page);
  }
  std::size_t count = 0;
  for (const std::uintptr_t page : pages) {
    unsigned char is_resident = 0;
    if (mincore(reinterpret_cast<void*>(page * kPageBytes), kPageBytes, &is_resident) != 0)
      throw std::runtime_error("mincore");
    count += is_resident & 1U;
  }
  return count * kPageBytes;
}

// This process's share of the memory of all mappings that overlap [begin, end): a page that N
// mappings share counts as 1/N of a page.
inline std::size_t proportional_bytes(const std::byte* begin, const std::byte* end) {
  std::ifstream file("/proc/self/smaps");
  std::size_t kilobytes = 0;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    std::size_t first = 0, last = 0, value = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &first, &last) == 2) {
      is_inside =
          first < reinterpret_cast<std::size_t>(end) && last > reinterpret_cast<std::size_t>(begin);
    } else if (is_inside && std::sscanf(line.c_str(), "Pss: %zu kB", &value) == 1) {
      kilobytes += value;
    }
  }
  return kilobytes << 10;
}

}  // namespace paceline::harness
