// Makes the manifests of `paceline submit kubernetes`.

#include <algorithm>
#include <cctype>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/launcher/output/line_formatter.h"

#include "apps/submit/submit_script.h"

namespace paceline::apps {

namespace {

// A job name must be a DNS label. The names of the hosts consist of the job name and a number, so
// this limit is lower than that of a label (63).
constexpr std::size_t kMaxJobName = 52;

void check_label(const std::string& flag, const std::string& text, std::size_t most) {
  const bool good = !text.empty() && text.size() <= most && text.front() != '-' &&
                    text.back() != '-' &&
                    std::all_of(text.begin(), text.end(), [](unsigned char c) {
                      return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-';
                    });
  check(good, "{}: '{}' must be at most {} lower-case letters, digits and inner '-'", flag,
        launcher::neutralise(text), most);
}

void check_quantity(const std::string& flag, const std::string& text) {
  const auto digits = text.find_first_not_of("0123456789");
  const std::string unit = digits == std::string::npos ? "" : text.substr(digits);
  const bool good = digits != 0 && !text.empty() &&
                    (unit.empty() || unit == "Mi" || unit == "Gi" || unit == "Ti" || unit == "M" ||
                     unit == "G" || unit == "T");
  check(good, "{}: '{}' is not an amount like 16Gi", flag, launcher::neutralise(text));
}

// The text as a YAML string; JSON strings are YAML strings. Error(kInvalid) for bytes that are not
// text, because YAML cannot contain them.
std::string yaml_text(const std::string& text) {
  return strict_json_text(text, fmt::format("manifest: '{}'", launcher::neutralise(text)));
}

// Doubles every $, because Kubernetes expands $(NAME) in arguments and reads $$ as one $.
std::string quoted_argument(const std::string& text) {
  std::string doubled;
  for (const char c : text) doubled += c == '$' ? std::string("$$") : std::string(1, c);
  return yaml_text(doubled);
}

std::string metadata(const SubmitRequest& request, const KubernetesRequest& kubernetes) {
  std::string text = fmt::format("metadata:\n  name: {}\n", yaml_text(request.job_name));
  if (!kubernetes.name_space.empty()) {
    text += fmt::format("  namespace: {}\n", yaml_text(kubernetes.name_space));
  }
  return text + fmt::format(
                    "  labels:\n    app.kubernetes.io/name: paceline\n"
                    "    app.kubernetes.io/instance: {}\n",
                    yaml_text(request.job_name));
}

// The group that owns the volumes if no user is chosen; without it, only root could read the
// secret.
constexpr long kVolumesGroup = 1000;

std::string security(const KubernetesRequest& kubernetes) {
  if (kubernetes.user < 0) {
    return fmt::format("      securityContext:\n        fsGroup: {}\n", kVolumesGroup);
  }
  return fmt::format(
      "      securityContext:\n        runAsNonRoot: {0}\n        runAsUser: {1}\n"
      "        runAsGroup: {1}\n        fsGroup: {1}\n",
      kubernetes.user > 0, kubernetes.user);
}

std::string resources(const SubmitRequest& request) {
  const int cores = request.ranks_per_node * request.cores_per_rank;
  const std::string memory =
      request.memory.empty() ? ""
                             : fmt::format("              memory: {}\n", yaml_text(request.memory));
  return fmt::format(
      "          resources:\n            requests:\n              cpu: \"{0}\"\n{1}"
      "            limits:\n              cpu: \"{0}\"\n{1}",
      cores, memory);
}

std::vector<std::string> arguments(const SubmitRequest& request,
                                   const KubernetesRequest& kubernetes) {
  std::vector<std::string> all = {request.paceline, "run",
                                  "--nproc-per-node=" + std::to_string(request.ranks_per_node)};
  if (request.num_nodes > 1) {
    all.push_back("--nnodes=" + std::to_string(request.num_nodes));
    all.push_back(fmt::format("--master-addr={0}-0.{0}", request.job_name));
    all.push_back("--master-port=" + std::to_string(kubernetes.port));
  }
  all.insert(all.end(), request.run_options.begin(), request.run_options.end());
  all.push_back("--");
  all.insert(all.end(), request.command.begin(), request.command.end());
  return all;
}

// The file in a secret volume is readable by a group, but Paceline requires a file that only its
// owner can read. So this command makes a copy.
constexpr const char* kCopySecret =
    "umask 077 && cat /etc/paceline/secret > /dev/shm/paceline-secret && exec \"$@\"";

std::string container(const SubmitRequest& request, const KubernetesRequest& kubernetes) {
  std::string text = fmt::format(
      "        - name: paceline\n          image: {}\n          command: [\"/bin/sh\", \"-c\", {}, "
      "\"sh\"]\n          args:\n",
      yaml_text(kubernetes.image), quoted_argument(kCopySecret));
  for (const std::string& word : arguments(request, kubernetes)) {
    text += fmt::format("            - {}\n", quoted_argument(word));
  }
  text +=
      "          env:\n            - name: PACELINE_SECRET_FILE\n"
      "              value: /dev/shm/paceline-secret\n";
  if (request.num_nodes > 1) {
    text +=
        "            - name: PET_NODE_RANK\n              valueFrom:\n                fieldRef:\n"
        "                  fieldPath: "
        "metadata.annotations['batch.kubernetes.io/job-completion-index']\n";
  }
  return text + resources(request) +
         "          volumeMounts:\n            - name: shm\n              mountPath: /dev/shm\n"
         "            - name: secret\n              mountPath: /etc/paceline\n"
         "              readOnly: true\n";
}

std::string job(const SubmitRequest& request, const KubernetesRequest& kubernetes) {
  return "apiVersion: batch/v1\nkind: Job\n" + metadata(request, kubernetes) +
         fmt::format(
             "spec:\n  completions: {0}\n  parallelism: {0}\n  completionMode: Indexed\n"
             "  backoffLimit: 0\n  podFailurePolicy:\n    rules:\n"
             "      - action: Ignore\n        onExitCodes:\n"
             "          containerName: paceline\n          operator: In\n"
             "          values: [{1}]\n",
             request.num_nodes, kStoppedAsAgreed) +
         fmt::format(
             "  template:\n    metadata:\n      labels:\n"
             "        app.kubernetes.io/name: paceline\n"
             "        app.kubernetes.io/instance: {0}\n    spec:\n"
             "      restartPolicy: Never\n      subdomain: {0}\n",
             yaml_text(request.job_name)) +
         security(kubernetes) + "      containers:\n" + container(request, kubernetes) +
         fmt::format(
             "      volumes:\n        - name: shm\n          emptyDir:\n"
             "            medium: Memory\n            sizeLimit: {}\n"
             "        - name: secret\n          secret:\n            secretName: {}\n"
             "            defaultMode: 256\n",
             yaml_text(kubernetes.shared_memory), yaml_text(request.job_name));
}

}  // namespace

std::string kubernetes_manifests(const SubmitRequest& request,
                                 const KubernetesRequest& kubernetes) {
  check_label("--job-name", request.job_name, kMaxJobName);
  check(std::isalpha(static_cast<unsigned char>(request.job_name.front())) != 0,
        "--job-name: '{}' must begin with a letter", request.job_name);
  if (!kubernetes.name_space.empty()) check_label("--namespace", kubernetes.name_space, 63);
  check(!kubernetes.image.empty(), "no image given: add --image IMAGE");
  check_quantity("--shared-memory", kubernetes.shared_memory);
  if (!request.memory.empty()) check_quantity("--mem", request.memory);
  std::string text =
      "apiVersion: v1\nkind: Secret\n" + metadata(request, kubernetes) +
      fmt::format("type: Opaque\nstringData:\n  secret: {}\n---\n", yaml_text(kubernetes.secret));
  text += "apiVersion: v1\nkind: Service\n" + metadata(request, kubernetes) +
          fmt::format(
              "spec:\n  clusterIP: None\n  publishNotReadyAddresses: true\n  selector:\n"
              "    app.kubernetes.io/instance: {}\n  ports:\n    - name: store\n"
              "      port: {}\n---\n",
              yaml_text(request.job_name), kubernetes.port);
  return text + job(request, kubernetes);
}

}  // namespace paceline::apps
