#include "apps/bench/catalog.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using harness::Says;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CatalogTest, knows_the_peers_by_name) {
  EXPECT_THAT(peer_names(), ElementsAre("gloo", "openmpi", "mpich", "oneccl"));
  for (const auto& entry : catalog()) EXPECT_EQ(find_entry(entry.name), &entry);
  EXPECT_EQ(find_entry("mpi"), nullptr);
}

TEST(CatalogTest, has_other_peers_for_calls) {
  EXPECT_THAT(peer_names(Subject::kCalls), ElementsAre("socket", "grpc", "capnp", "torch"));
  EXPECT_EQ(find_entry("gloo", Subject::kCalls), nullptr);
  EXPECT_EQ(find_entry("grpc"), nullptr);
  EXPECT_THAT(locate(*find_entry("grpc", Subject::kCalls), "/no/folder", "").missing,
              Says("bench.peer_not_built", "gRPC", "/no/folder/bench-rpc-grpc",
                   "apt-get install libgrpc++-dev"));
}

class LocateTest : public testing::Test {
 protected:
  void make_program(const std::string& name) {
    std::ofstream(directory_.file(name)) << "#!/bin/sh\n";
    std::filesystem::permissions(directory_.file(name), std::filesystem::perms::owner_all);
  }
  Located locate_in(const std::string& name, const std::string& path) {
    return locate(*find_entry(name), directory_.path(), path);
  }
  FreshDirectory directory_;
};

TEST_F(LocateTest, a_peer_that_was_not_built_is_named_with_its_package) {
  EXPECT_THAT(locate_in("gloo", "").missing, HasSubstr("libgloo-dev"));
  EXPECT_THAT(locate_in("openmpi", "").missing, HasSubstr("libopenmpi-dev"));
  EXPECT_THAT(locate_in("mpich", "").missing, HasSubstr("libmpich-dev"));
  EXPECT_THAT(locate_in("oneccl", "").missing, HasSubstr("oneccl-devel"));
}

TEST_F(LocateTest, a_launcher_that_is_not_installed_is_named_with_its_package) {
  make_program("bench-openmpi");
  EXPECT_THAT(locate_in("openmpi", "/nowhere").missing, HasSubstr("openmpi-bin"));
  make_program("mpirun.openmpi");
  const Located found = locate_in("openmpi", "/nowhere:" + directory_.path());
  EXPECT_EQ(found.missing, "");
  EXPECT_EQ(found.launcher, directory_.file("mpirun.openmpi"));
  EXPECT_EQ(found.program, directory_.file("bench-openmpi"));
}

}  // namespace
}  // namespace paceline::bench
