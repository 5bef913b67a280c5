#include "paceline/training/train/test_result.h"

#include <fmt/format.h>

namespace paceline::train {

std::string table_row(const std::string& name, const std::string& value) {
  return fmt::format("  {:<24}{}\n", name, value);
}

std::string table_of(const TestResult& result) {
  std::string text;
  for (const auto& [name, value] : result.rows) text += table_row(name, value);
  return text;
}

}  // namespace paceline::train
