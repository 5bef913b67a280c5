#pragma once

// Sizes as people type them: "4K,64K,1M", and ranges "8:1G" (times 4) or "8:1G:2" (times 2). K, M
// and G are powers of 1024; "KB" and "KiB" mean the same.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::bench {

inline constexpr std::size_t kLargestSize = std::size_t(1) << 30;

// Why a list cannot be read: the part that is wrong, and what is allowed.
class SizeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ascending, without duplicates, each from 1 to kLargestSize. Throws SizeError.
std::vector<std::size_t> parse_sizes(std::string_view text);

}  // namespace paceline::bench
