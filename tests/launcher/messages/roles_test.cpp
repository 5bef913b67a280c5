#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/launcher/messages/job_terms.h"

#include "tests/harness/expect_error.h"

namespace paceline::launcher {
namespace {

TEST(Roles, every_form_that_is_right_is_read) {
  struct Row {
    std::string text;
    Roles roles;
  };
  const std::vector<Row> rows = {
      {"trainer=2,observer=4", {{"trainer", 2}, {"observer", 4}}},
      {"a=1", {{"a", 1}}},
      {"b=1,a=1", {{"b", 1}, {"a", 1}}},  // keeps the given order
      {"Actor=3,actor=2", {{"Actor", 3}, {"actor", 2}}},
      {"parameter-server=1,data_loader=2", {{"parameter-server", 1}, {"data_loader", 2}}},
      {"gpt2-head=1", {{"gpt2-head", 1}}},
      {"x=1000000", {{"x", 1000000}}},
      {"x=007", {{"x", 7}}},
      {std::string(64, 'n') + "=1", {{std::string(64, 'n'), 1}}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(parse_roles(row.text, "--roles"), row.roles) << row.text;
    EXPECT_EQ(parse_roles(to_text(row.roles), "--roles"), row.roles) << row.text;
  }
}

TEST(Roles, every_form_that_is_wrong_is_refused_in_one_line) {
  const std::string form = "write NAME=COUNT, as in trainer=2,observer=4";
  const std::string count = "a role has from 1 to 1000000 ranks, as in trainer=2";
  const std::string name =
      "is not a valid role name: use letters, digits, - and _, and begin with a letter";
  const std::string digit = "a role's name must not end with a digit";
  struct Row {
    std::string text, part, why;
  };
  const std::vector<Row> rows = {
      {"", "", form},
      {"trainer", "trainer", form},
      {"2", "2", form},
      {"trainer:2", "trainer:2", form},
      {"trainer 2", "trainer 2", form},
      {"trainer=", "trainer=", form},
      {"=2", "=2", form},
      {"=", "=", form},
      {"a=1,", "", form},
      {",a=1", "", form},
      {"a=1,,b=1", "", form},
      {"a=1;b=1", "a=1;b=1", count},
      {"a=1 b=1", "a=1 b=1", count},
      {"a=1, b=1", " b", name},
      {" a=1", " a", name},
      {"a =1", "a ", name},
      {"a= 1", "a= 1", count},
      {"a=1 ", "a=1 ", count},
      {"a\t=1", "a\t", name},
      {"-a=1", "-a", name},
      {"1a=1", "1a", name},
      {"\xc3\xa4=1", "\xc3\xa4", name},
      {"a/b=1", "a/b", name},
      {"a=0", "a=0", count},
      {"a=-1", "a=-1", count},
      {"a=+1", "a=+1", count},
      {"a=1.5", "a=1.5", count},
      {"a=2x", "a=2x", count},
      {"a=1e3", "a=1e3", count},
      {"a=b", "a=b", count},
      {"a==1", "a==1", count},
      {"a=1=2", "a=1=2", count},
      {"a=auto", "a=auto", count},
      {"a=1000001", "a=1000001", count},
      {"a=99999999999999999999", "a=99999999999999999999", count},
      {"a=1,a=2", "a", "is given twice"},
      {"a=1,b=1,a=1", "a", "is given twice"},
      // Both roles would have a trainer10 and a trainer11.
      {"trainer=12,trainer1=2", "trainer1", digit},
      {"gpt2=1", "gpt2", digit},
      {"default=2", "default", "is reserved for ranks without a role"},
      {std::string(65, 'n') + "=1", std::string(65, 'n'), "has at most 64 characters"},

  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text);
    expect_error(ErrorCode::kInvalid, {"--roles: ", "'" + row.part + "'", row.why},
                 [&] { parse_roles(row.text, "--roles"); });
  }
}

TEST(Roles, all_together_have_a_limit) {
  expect_error(ErrorCode::kInvalid, {"--roles: the roles have more than 1000000 ranks"},
               [] { parse_roles("a=600000,b=600000", "--roles"); });
}

TEST(Roles, ranks_are_dealt_in_order) {
  const Roles roles = parse_roles("trainer=2,observer=4", "--roles");
  EXPECT_EQ(num_ranks(roles), 6);
  const std::vector<std::string> workers = {"trainer0",  "trainer1",  "observer0",
                                            "observer1", "observer2", "observer3"};
  for (int rank = 0; rank < 6; ++rank) {
    const RankRole role = role_of(roles, rank);
    EXPECT_EQ(role.worker(), workers[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(role.count, rank < 2 ? 2 : 4);
  }
}

// Nodes 0 and 2 bring trainers, node 1 brings an observer.
TEST(Roles, a_role_that_nodes_bring_apart_is_numbered_through) {
  const Roles roles = {{"trainer", 2}, {"observer", 1}, {"trainer", 3}};
  const std::vector<std::string> workers = {"trainer0", "trainer1", "observer0",
                                            "trainer2", "trainer3", "trainer4"};
  for (int rank = 0; rank < 6; ++rank) {
    const RankRole role = role_of(roles, rank);
    EXPECT_EQ(role.worker(), workers[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(role.count, role.name == "observer" ? 1 : 5);
  }
}

TEST(Roles, those_that_the_job_does_not_wait_for_serve) {
  const auto serving = [](const std::string& until) {
    Roles roles = parse_roles("trainer=2,server=1,observer=4", "--roles");
    set_awaited(roles, until, "--until");
    std::string names;
    for (const RoleCount& role : roles) names += role.serves ? role.name + " " : "";
    return names;
  };
  EXPECT_EQ(serving("trainer"), "server observer ");
  EXPECT_EQ(serving("observer,trainer"), "server ");
  EXPECT_EQ(serving("trainer,server,observer"), "");
  const std::string unknown = "is not a role of --roles: choose from trainer, server, observer";
  for (const auto& [until, part, why] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"", "", unknown},
           {"trainers", "trainers", unknown},
           {"trainer0", "trainer0", unknown},
           {"trainer=2", "trainer=2", unknown},
           {"trainer, server", " server", unknown},
           {"trainer,", "", unknown},
           {"trainer,trainer", "trainer", "is given twice"}}) {
    SCOPED_TRACE(until);
    expect_error(ErrorCode::kInvalid, {"--until: ", "'" + part + "'", why},
                 [&, text = until] { serving(text); });
  }
}

}  // namespace
}  // namespace paceline::launcher
