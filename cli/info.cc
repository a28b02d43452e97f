// headwater info: what this build and machine can run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/json_file.h"
#include "cli/machine.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "headwater/headwater.h"

namespace headwater::cli {
namespace {

struct InfoOptions {
  bool matrix = false;
  bool json = false;
};

struct RuleRow {
  RuleKind kind;
  const char* name;
};
constexpr std::array<RuleRow, 5> kRules = {{{RuleKind::kFull, "full"},
                                            {RuleKind::kCausal, "causal"},
                                            {RuleKind::kWindow, "window"},
                                            {RuleKind::kCompressed, "compressed"},
                                            {RuleKind::kGathered, "gathered"}}};

// A decode problem's bounds: one query token of 16 heads over a cache in pages of 64.
Bounds decode_bounds(DeviceKind device, const FormatInfo& format, RuleKind rule) {
  Bounds bounds;
  bounds.device.kind = device;
  bounds.max_requests = 8;
  bounds.max_total_q = 8;
  bounds.max_q_len = 1;
  bounds.heads = 16;
  bounds.d_qk = format.fixed_width != 0 ? format.fixed_width : 128;
  bounds.d_v = bounds.d_qk == 576 ? 512 : bounds.d_qk;
  SourceBounds source;
  source.k_format = source.v_format = format.format;
  source.shared = format.fixed_width != 0 || format.planar || format.format == Format::kMxfp4RopeBf16;
  source.heads = source.shared ? 1 : 2;
  source.addressing = AddressingKind::kBlockTable;
  source.page_size = 64;
  source.rule = rule;
  if (rule == RuleKind::kWindow) source.window_left = 127;
  if (rule == RuleKind::kCompressed) source.ratio = 4;
  if (rule == RuleKind::kGathered) source.topk = 2048;
  source.max_len = rule == RuleKind::kGathered ? 2048 : 65536;
  bounds.sources = {source};
  return bounds;
}

// Markdown: for every usable backend, formats down, rules across, the kernel that a decode step gets. Asked of the chooser itself.
std::string matrix() {
  std::string out;
  for (const BackendInfo& backend : backends()) {
    out += fmt::format("### {}\n\n", backend.name);
    if (!backend.usable) {
      out += backend.detail + "\n\n";
      continue;
    }
    const DeviceKind device = backend.name == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
    std::vector<std::string> header{"format"};
    for (const RuleRow& rule : kRules) header.emplace_back(rule.name);
    Table table(header);
    for (const FormatInfo& format : all_formats()) {
      std::vector<std::string> row{std::string(format.name)};
      for (const RuleRow& rule : kRules) {
        const Result<Plan> plan = make_plan(decode_bounds(device, format, rule.kind));
        row.push_back(plan.ok() ? plan->kernel() : "-");
      }
      table.add(std::move(row));
    }
    out += table.markdown() + "\n";
  }
  return out;
}

nlohmann::ordered_json to_json() {
  nlohmann::ordered_json json{{"version", version()}, {"cpu", cpu_name()}, {"threads", usable_cpus()}};
  json["backends"] = nlohmann::ordered_json::array();
  json["kernels"] = nlohmann::ordered_json::array();
  json["formats"] = nlohmann::ordered_json::array();
  for (const BackendInfo& b : backends()) {
    json["backends"].push_back({{"name", b.name}, {"built", b.built}, {"usable", b.usable}, {"detail", b.detail}});
  }
  for (const KernelInfo& k : kernels()) {
    json["kernels"].push_back({{"name", k.name}, {"backend", k.backend}, {"file", k.file}, {"accepts", k.accepts}, {"usable", k.usable}});
  }
  for (const FormatInfo& f : all_formats()) {
    json["formats"].push_back({{"name", f.name},
                               {"width", f.fixed_width},
                               {"takes_scale", f.takes_scale},
                               {"scales_apart", f.scales_apart},
                               {"planar", f.planar}});
  }
  return json;
}

void print_text() {
  fmt::print("headwater {}\n", version());
  fmt::print("machine   {}, {} threads for this process, last cache level {}\n", cpu_name(), usable_cpus(),
             human_bytes(static_cast<double>(last_cache_bytes())));
  for (const BackendInfo& b : backends()) fmt::print("{:<9} {}\n", b.name, printable(b.detail));
  fmt::print("\n");
  Table table({"kernel", "backend", "here", "accepts", "source"});
  for (const KernelInfo& k : kernels()) table.add({k.name, k.backend, k.usable ? "runs" : "cannot run", k.accepts, k.file});
  fmt::print("{}\nformats  ", table.text());
  for (const FormatInfo& f : all_formats()) fmt::print(" {}", f.name);
  fmt::print("\n");
}

int info(const InfoOptions& o) {
  if (o.matrix) {
    fmt::print("{}", matrix());
  } else if (o.json) {
    if (const Status status = write_json("-", to_json()); !status.ok()) return fail(status);
  } else {
    print_text();
  }
  return kDone;
}

}  // namespace

void register_info(CLI::App& app, Action& action) {
  auto o = std::make_shared<InfoOptions>();
  CLI::App* verb = app.add_subcommand("info", "What this build and this machine can run");
  CLI::Option* matrix = verb->add_flag("--matrix", o->matrix, "The table formats x rules as Markdown: which kernel a decode step gets");
  verb->add_flag("--json", o->json, "For programs")->excludes(matrix);
  verb->callback([o, &action] { action = [o] { return info(*o); }; });
}

}  // namespace headwater::cli
