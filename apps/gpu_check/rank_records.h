#pragma once

// Lines of JSON with which the ranks of `paceline gpu-check` report their progress to the command:
// one file per rank, in a folder that the command creates.
//
//   {"begin":"order"}
//   {"end":"order","verdict":"pass","text":"","advice":"","seconds":1.5,"time":...,"figures":{}}
//
// Thread safety: none.

#include <fstream>
#include <map>
#include <set>
#include <string>

#include "apps/gpu_check/check_report.h"

namespace paceline::gpu_check {

// A line that a rank has written about a check.
struct RankRecord {
  CheckOutcome outcome;
  double time = 0;  // when it was written, in seconds on the system's clock
};

// Reads the records of one rank while it writes them.
class RankRecords {
 public:
  RankRecords(const std::string& folder, int rank);

  // Reads the lines that were completed since the last call.
  void read();
  bool has_begun(const std::string& check) const { return begun_.contains(check); }
  // Null if the rank has not ended the check.
  const RankRecord* end_of(const std::string& check) const;

 private:
  void take(const std::string& line);

  const std::string path_;
  std::streamoff position_ = 0;
  std::set<std::string> begun_;
  std::map<std::string, RankRecord> ended_;
};

// Writes the records of one rank. Error(kSystem) if the file cannot be written.
class RecordWriter {
 public:
  RecordWriter(const std::string& folder, int rank);
  void begin(const std::string& check);
  void end(const CheckOutcome& outcome);

 private:
  void write(const std::string& line);

  const std::string path_;
  std::ofstream file_;
};

}  // namespace paceline::gpu_check
