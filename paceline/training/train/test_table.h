#pragma once

// The parts of evaluate(): labels that are checked, sums over the ranks, and the closing table.
//
// Thread safety: none.

#include <cstdint>
#include <string>

#include "paceline/training/train/evaluate.h"

namespace paceline::train {

// Returns a line of a closing table, including the newline.
std::string table_row(const std::string& name, const std::string& value);
std::string table_of(const TestResult& result);

// Throws Error(kInvalid), which names the sample of `dataset`, if a label (int64 [B]) is not in [0,
// classes). Labels of another type, such as soft labels, are not checked.
void require_labels(const data::Batch& batch, std::int64_t classes, const std::string& dataset);

// "test accuracy 90.12%, loss 0.2750, top-5 99.31%".
TestResult test_result(const Evaluation& evaluation);

// "test perplexity 12.18, loss 2.5000".
TestResult test_result(const TextEvaluation& evaluation);

}  // namespace paceline::train
