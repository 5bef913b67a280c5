#pragma once

// What an evaluation found, in the form in which a run prints and logs it, whatever the model:
// accuracy for images, perplexity for text. A value.

#include <string>
#include <utility>
#include <vector>

namespace paceline::train {

struct TestResult {
  double loss = 0;      // mean over the samples; what ReduceLrOnPlateau follows
  std::string summary;  // one line: "test accuracy 90.12%, loss 0.2750"
  // For metrics: {"accuracy", 0.9012}.
  std::vector<std::pair<std::string, double>> values;
  // For the closing table: {"test accuracy", "90.12% of 10000 images (loss 0.2750)"}.
  std::vector<std::pair<std::string, std::string>> rows;
};

// A line of a closing table, with its end.
std::string table_row(const std::string& name, const std::string& value);
std::string table_of(const TestResult& result);

}  // namespace paceline::train
