// Choosing a backend by name: which names are accepted, which are refused, and what happens when
// the ranks choose differently.

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/store/memory_store.h"

#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::Says;
using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(BackendChoice, is_a_name_or_one_per_device) {
  const auto parse = parse_backend_choice;
  EXPECT_EQ(parse(""), (BackendChoice{"paceline", ""}));
  EXPECT_EQ(parse("paceline"), (BackendChoice{"paceline", ""}));
  EXPECT_EQ(parse("gloo"), (BackendChoice{"gloo", ""}));
  EXPECT_EQ(parse("cpu:gloo"), (BackendChoice{"gloo", ""}));
  EXPECT_EQ(parse("nccl"), (BackendChoice{"paceline", "nccl"}));
  EXPECT_EQ(parse("cuda:nccl"), (BackendChoice{"paceline", "nccl"}));
  EXPECT_EQ(parse("cpu:paceline,cuda:nccl"), (BackendChoice{"paceline", "nccl"}));
  EXPECT_EQ(parse("cuda:nccl,cpu:mpi"), (BackendChoice{"mpi", "nccl"}));
  EXPECT_EQ(parse("gloo,nccl"), (BackendChoice{"gloo", "nccl"}));
}

TEST(BackendChoice, has_one_text_that_is_parsed_to_the_same) {
  for (const char* text : {"paceline", "gloo", "mpi", "oneccl", "cpu:gloo,cuda:nccl"}) {
    EXPECT_EQ(parse_backend_choice(text).text(), text);
  }
  EXPECT_EQ(parse_backend_choice("nccl").text(), "cpu:paceline,cuda:nccl");
}

TEST(BackendChoice, anything_else_is_refused_with_what_there_is) {
  const std::pair<const char*, const char*> cases[] = {
      {"glo", "choose one of paceline, gloo, mpi, oneccl and, for cuda, nccl"},
      {"Gloo", "unknown backend 'Gloo'"},
      {" gloo", "unknown backend ' gloo'"},
      {"gloo,", "unknown backend ''"},
      {",", "unknown backend ''"},
      {"cpu:", "unknown backend ''"},
      {":gloo", "'' is not a device"},
      {"xpu:oneccl", "'xpu' is not a device"},
      {"cpu:gloo,cpu:mpi", "cpu is named twice"},
      {"gloo,mpi", "cpu is named twice"},
      {"nccl,cuda:nccl", "cuda is named twice"},
      {"cuda:gloo", "gloo does not work on cuda; backends for cuda: nccl"},
      {"cpu:nccl", "nccl does not work on cpu"},
      {"cpu:gloo:1", "unknown backend 'gloo:1'"}};
  for (const auto& [text, wanted] : cases) {
    try {
      parse_backend_choice(text);
      ADD_FAILURE() << text << " was understood";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), HasSubstr(wanted)) << text;
    }
  }
}

TEST(BackendList, has_every_name_once_and_says_why_one_is_absent) {
  std::vector<std::string> names;
  for (const BackendInfo& info : list_backends()) {
    names.push_back(info.name);
    EXPECT_EQ(is_backend_available(info.name), info.available);
    EXPECT_FALSE(info.text.empty()) << info.name;
    EXPECT_EQ(info.advice.empty(), info.available) << info.name;
  }
  EXPECT_THAT(names, testing::ElementsAre("paceline", "gloo", "mpi", "oneccl", "nccl"));
  EXPECT_TRUE(is_backend_available("paceline"));
  EXPECT_FALSE(is_backend_available("tcp"));
}

// Forms a group of three ranks with these choices; returns the error of each rank.
std::vector<std::optional<Error>> choose(const std::vector<std::string>& choices) {
  const auto store = std::make_shared<MemoryStore>();
  const auto secret = Secret::generate();
  std::vector<std::optional<Error>> errors(choices.size());
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        init_process_group({.rendezvous = {.rank = static_cast<int>(rank),
                                           .world_size = static_cast<int>(choices.size()),
                                           .store = store,
                                           .secret = secret},
                            .group = {.timeout = 20s, .backend = choices[rank]}});
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
  }
  ranks.clear();
  return errors;
}

void expect_everywhere(const std::vector<std::string>& choices, ErrorCode code,
                       const std::string& text) {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& error : choose(choices)) {
    ASSERT_TRUE(error) << "a rank noticed nothing";
    EXPECT_EQ(error->code(), code) << error->what();
    EXPECT_THAT(error->what(), HasSubstr(text));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s) << "waited for the time-out";
}

TEST(BackendAgreement, one_name_in_several_spellings_is_one_choice) {
  for (const auto& error : choose({"", "paceline", "cpu:paceline"})) {
    EXPECT_FALSE(error) << error->what();
  }
}

TEST(BackendAgreement, a_rank_with_a_wrong_name_is_an_error_on_every_rank) {
  expect_everywhere({"paceline", "paceline", "glo"}, ErrorCode::kInvalid,
                    "backend 'glo': unknown backend 'glo'");
}

TEST(BackendAgreement, different_backends_are_an_error_on_every_rank) {
  if (!is_backend_available("gloo")) return;
  expect_everywhere({"paceline", "gloo", "paceline"}, ErrorCode::kInvalid,
                    "rank 0 paceline, rank 1 gloo");
}

TEST(BackendAgreement, a_backend_that_is_not_built_is_an_error_that_says_how_to_get_it) {
  for (const BackendInfo& info : list_backends()) {
    if (info.available) continue;
    expect_everywhere({info.name, info.name, info.name}, ErrorCode::kUnsupported,
                      "backend '" + info.name + "' is not part of this build: " + info.text);
  }
}

TEST(BackendAgreement, the_variable_counts_where_the_options_say_nothing) {
  ASSERT_EQ(setenv("PACELINE_BACKEND", "nothing", 1), 0);
  EXPECT_THROW(init_process_group(), Error);
  EXPECT_EQ(init_process_group({.group = {.backend = "paceline"}})->backend(), "paceline");
  ASSERT_EQ(unsetenv("PACELINE_BACKEND"), 0);
  EXPECT_EQ(init_process_group()->backend(), "paceline");
}

TEST(BackendAgreement, memory_of_a_device_without_a_backend_is_refused_and_harms_nothing) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> data(10, 1.0f);
    EXPECT_FALSE(group.supports(Op::kAllReduce, Dtype::kFloat32, ReduceOp::kSum, Device::kCuda));
    try {
      group.all_reduce(Buffer(data.data(), data.size(), Dtype::kFloat32, Device::kCuda));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.what(), Says("backend.none_for_cuda", "world"));
    }
    EXPECT_THROW(
        group.send(ConstBuffer(data.data(), 10, Dtype::kFloat32, Device::kCuda), 1 - group.rank()),
        Error);
    EXPECT_THROW(group.all_reduce(Buffer(data.data(), 10, Dtype::kFloat32, Device::kCuda),
                                  ConstBuffer(std::span(data)), ReduceOp::kSum),
                 Error);
    EXPECT_EQ(all_reduce_value(group, 1), 2);
  });
}

}  // namespace
}  // namespace paceline
