// The manifests of `paceline submit kubernetes`, checked against the published schemas.

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using testing::HasSubstr;

using Arguments = std::vector<std::string>;

class SubmitSchemas : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("/usr/bin/python3 -c 'import jsonschema, yaml' 2>/dev/null") != 0) {
      GTEST_SKIP() << "python3-jsonschema or python3-yaml is not installed";
    }
  }

  static std::string manifests(const Arguments& options) {
    Arguments arguments = {"submit", "kubernetes", "--dry-run", "--image", "registry/train:1"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"./train", "--lr", "0.1"});
    const Outcome outcome = run_paceline(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  Outcome check(const std::string& manifests) {
    const std::string folder = KUBERNETES_SCHEMAS;
    return PacelineProcess({folder + "/check_manifests", folder + "/schemas.json",
                            directory.write("job.yaml", manifests)},
                           {}, "/usr/bin/python3")
        .wait();
  }

  FreshDirectory directory;
};

TEST_F(SubmitSchemas, take_every_kind_of_job) {
  for (const Arguments& options :
       {Arguments{}, Arguments{"--nnodes", "2"},
        Arguments{"--nnodes", "3", "--nproc-per-node", "4", "--threads-per-rank", "2", "--mem",
                  "16Gi", "--namespace", "lab", "--shared-memory", "2Gi", "--run-as-user", "1000",
                  "--job-name", "job", "--master-port", "1234", "--all-ranks"}}) {
    const Outcome outcome = check(manifests(options));
    EXPECT_EQ(outcome.out, "3 documents, 0 problems\n") << outcome.err;
  }
}

TEST_F(SubmitSchemas, refuse_unknown_fields_and_wrong_types) {
  std::string text = manifests({"--nnodes", "2"});
  text.replace(text.find("completionMode"), 14, "completionKind");
  text.replace(text.find("parallelism: 2"), 14, "parallelism: x");
  const Outcome outcome = check(text);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("'completionKind' was unexpected"));
  EXPECT_THAT(outcome.out, HasSubstr("spec.parallelism: 'x' is not of type 'integer'"));
}

}  // namespace
}  // namespace paceline::launcher
