#include <fmt/format.h>

#include <algorithm>

#include "cli/run.h"
#include "cli/terminal.h"

namespace headwater::cli {
namespace {

std::string spread(const Timing& t) {
  return fmt::format("{} ({} .. {}, {} runs)", human_time(t.median), human_time(t.low), human_time(t.high), t.runs);
}

// Why this kernel: its place in the list, and what the rows before it said.
std::string why(const RunReport& r) {
  size_t place = 0;
  while (place < r.verdicts.size() && r.verdicts[place].kernel != r.kernel) ++place;
  std::string text = fmt::format("row {} of {}, the first that accepts", place + 1, r.verdicts.size());
  for (size_t i = 0; i < place; ++i) text += fmt::format("; {} refused: {}", r.verdicts[i].kernel, r.verdicts[i].reason);
  return text;
}

std::string share(const RunReport& r) {
  if (!r.roofline_share) return "";
  const std::string of = r.memory_bound ? fmt::format("{:.1f} GB/s memory reads", r.ceilings.dram_gbps)
                                        : fmt::format("{:.0f} GFLOP/s float32", r.ceilings.fma_gflops);
  return fmt::format("{:.0f} % of this machine's roofline ({}, measured just now, {} threads)", *r.roofline_share * 100, of, r.workers);
}

std::string verdict(const CheckResult& c) {
  if (!c.passed) return "FAILED: " + c.fault;
  return fmt::format("{:.1e} of {:.1e} allowed", c.error, c.allowed);
}

void add_block(const RunReport& r, std::string* out) {
  const auto line = [&](const char* what, const std::string& text) { *out += fmt::format("  {:<9} {}\n", what, printable(text)); };
  std::string rest = r.detail;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    *out += "  " + printable(rest.substr(0, end)) + "\n";
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  if (!r.encoding.empty()) line("stored", r.encoding);
  line("kernel", r.kernel + " (" + why(r) + ")");
  line("cold", spread(r.cold));
  line("warm", spread(r.warm));
  line("work", fmt::format("{} KV entries, {} of KV, {:.3g} MFLOP", r.work.entries, human_bytes(r.work.kv_bytes), r.work.flops * 1e-6));
  std::string rate = r.gbs ? fmt::format("{:.2f} GB/s", *r.gbs) : "";
  if (r.gflops) rate += fmt::format("{}{:.1f} GFLOP/s", rate.empty() ? "" : ", ", *r.gflops);
  line("rate", rate.empty() ? "too little work to judge" : rate + (r.gbs ? " cold" : " cold; too few bytes to judge bandwidth"));
  if (r.roofline_share) line("", share(r));
  if (r.check) {
    line("check",
         verdict(*r.check) +
             (r.check->passed ? fmt::format(" against the float64 oracle; worst row or lse at {:.2g} of its allowance", r.check->worst_row)
                              : ""));
  }
}

void add_table(const std::vector<RunReport>& reports, std::string* out) {
  const bool checked = std::any_of(reports.begin(), reports.end(), [](const RunReport& r) { return r.check.has_value(); });
  std::vector<std::string> header{"problem", "kernel", "cold", "warm", "quartiles of warm", "GB/s", "GFLOP/s", "roofline"};
  if (checked) header.insert(header.end(), {"error", "worst row"});
  Table table(header);
  for (const RunReport& r : reports) {
    std::vector<std::string> row{r.name,
                                 r.kernel,
                                 human_time(r.cold.median),
                                 human_time(r.warm.median),
                                 human_time(r.warm.low) + " .. " + human_time(r.warm.high),
                                 r.gbs ? fmt::format("{:.2f}", *r.gbs) : "-",
                                 r.gflops ? fmt::format("{:.1f}", *r.gflops) : "-",
                                 r.roofline_share ? fmt::format("{:.0f} %", *r.roofline_share * 100) : "-"};
    if (r.check) row.insert(row.end(), {printable(verdict(*r.check)), r.check->passed ? fmt::format("{:.2g}", r.check->worst_row) : "-"});
    table.add(std::move(row));
  }
  *out += table.text(2);
  if (checked)
    *out += "  error: of the whole output against the float64 oracle; worst row (or lse): share of its own allowance, passing up to 1\n";
  const bool small = std::any_of(reports.begin(), reports.end(), [](const RunReport& r) { return !r.gbs || !r.gflops; });
  if (small) *out += "  - : too little of it to judge\n";
  for (const RunReport& r : reports) {
    if (!r.roofline_share) continue;
    *out += fmt::format("  roofline: {:.1f} GB/s memory reads, {:.0f} GFLOP/s float32, measured just now with {} threads\n",
                        r.ceilings.dram_gbps, r.ceilings.fma_gflops, r.workers);
    break;
  }
}

nlohmann::ordered_json timing_json(const Timing& t) {
  return {{"median_s", t.median}, {"low_s", t.low}, {"high_s", t.high}, {"runs", t.runs}};
}

}  // namespace

std::string report_text(const std::string& file, const std::vector<RunReport>& reports) {
  std::string out = printable(file) + "\n";
  const std::string busy = busy_machine();
  const std::string warning = busy.empty() ? "" : "  this machine is busy (" + busy + "): the times say little\n";
  if (reports.size() == 1) {
    const RunReport& r = reports.front();
    if (!r.note.empty()) out += "  " + printable(r.note) + "\n";
    if (!r.name.empty()) out += "  " + printable(r.name) + "\n";
    add_block(r, &out);
    return out + warning;
  }
  std::string told;
  for (const RunReport& r : reports) {  // what several problems share is told once
    if (r.note + r.line + r.encoding == told) continue;
    told = r.note + r.line + r.encoding;
    if (!r.note.empty()) out += "  " + printable(r.note) + "\n";
    out += "  " + printable(r.name) + " ...: " + printable(r.line) + "\n";
    if (!r.encoding.empty()) out += "  stored: " + printable(r.encoding) + "\n";
  }
  out += "\n";
  add_table(reports, &out);
  return out + warning;
}

nlohmann::ordered_json report_json(const std::string& file, const std::vector<RunReport>& reports) {
  nlohmann::ordered_json json{
      {"file", file}, {"version", version()}, {"cpu", cpu_name()}, {"busy", busy_machine()}, {"problems", nlohmann::ordered_json::array()}};
  for (const RunReport& r : reports) {
    nlohmann::ordered_json p{{"name", r.name}, {"description", r.line}, {"note", r.note}, {"encoding", r.encoding}, {"kernel", r.kernel}};
    for (const KernelVerdict& v : r.verdicts)
      p["verdicts"].push_back({{"kernel", v.kernel}, {"accepted", v.accepted}, {"reason", v.reason}});
    p["workers"] = r.workers;
    p["entries"] = r.work.entries;
    p["kv_bytes"] = r.work.kv_bytes;
    p["flops"] = r.work.flops;
    p["plan"] = r.plan;
    p["cold"] = timing_json(r.cold);
    p["warm"] = timing_json(r.warm);
    if (r.gbs) p["gb_per_s"] = *r.gbs;
    if (r.gflops) p["gflop_per_s"] = *r.gflops;
    if (r.roofline_share) {
      p["roofline"] = {{"share", *r.roofline_share},
                       {"bound", r.memory_bound ? "memory" : "arithmetic"},
                       {"read_gb_per_s", r.ceilings.dram_gbps},
                       {"fma_gflop_per_s", r.ceilings.fma_gflops}};
    }
    if (r.check) {
      p["check"] = {{"passed", r.check->passed},
                    {"fault", r.check->fault},
                    {"error", r.check->error},
                    {"allowed", r.check->allowed},
                    {"worst_row", r.check->worst_row}};
    }
    json["problems"].push_back(std::move(p));
  }
  return json;
}

}  // namespace headwater::cli
