#pragma once

// The outcomes of `paceline gpu-check`, as a table and as one file of JSON.
//
// Thread safety: pure functions, except write_report().

#include <string>
#include <vector>

namespace paceline::gpu_check {

// kNotHere: this machine or this build cannot run the check; the text says why.
enum class Verdict { kPass, kFail, kNotHere };

struct CheckOutcome {
  std::string name;  // "nccl/order"
  std::string what = {};
  Verdict verdict = Verdict::kPass;
  std::string text = {};     // the reason, or the figures in words
  std::string advice = {};   // how to correct the failure; may be empty
  double seconds = 0;        // time of the slowest rank
  std::string figures = {};  // a JSON object; empty: none
  std::string output = {};   // the end of the ranks' output, if they failed
};

// "pass", "fail" or "skipped".
const char* name_of(Verdict verdict);
// The inverse of name_of(), for verdicts that ranks wrote. Error(kCorrupt) for any other word.
Verdict verdict_of(const std::string& name);

// Formats an outcome as a line, followed by a second line with the advice if there is any.
std::string text_of(const CheckOutcome& outcome);
// "12 passed, 1 failed (host/order), 4 skipped".
std::string summary_of(const std::vector<CheckOutcome>& outcomes);
bool any_failed(const std::vector<CheckOutcome>& outcomes);

// The whole report. `facts`: the text of a JSON object about the machine.
std::string report_text(const std::string& facts, const std::vector<CheckOutcome>& outcomes,
                        double seconds);
// Error(kSystem) if the file cannot be written.
void write_report(const std::string& path, const std::string& text);

}  // namespace paceline::gpu_check
