"""Plots of results: python -m headwater.plot results.json [-o plot.svg]. results.json is what `headwater bench --json` wrote, or a list of
rows from headwater.compare."""

import argparse
import json


def plot_bench(results, axes):
    """Median time of every shape against its floor, slowest ratio on top."""
    rows = sorted((r for r in results["rows"] if "median_us" in r), key=lambda r: r["floor_ratio"])
    names = [r["name"] for r in rows]
    axes.barh(names, [r["median_us"] for r in rows], color="tab:blue", label="median")
    axes.barh(names, [r["floor_us"] for r in rows], color="tab:gray", height=0.4, label="floor of this machine")
    for i, r in enumerate(rows):
        axes.text(r["median_us"], i, f" {r['floor_ratio']:.1f}x, {r['kernel']}", va="center", fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel(f"us a call, {results.get('cpu', '')}, headwater {results.get('version', '')}")
    axes.legend(fontsize=7)


def plot_compare(rows, axes):
    """Bytes a token against KL divergence."""
    for r in rows:
        if r["kl_mean"] <= 0:
            continue
        name = r["k_format"] if r["k_format"] == r["v_format"] else f"{r['k_format']} / {r['v_format']}"
        axes.plot(r["bytes_per_token"], r["kl_mean"], "o", color="tab:blue")
        axes.annotate(f" {name}", (r["bytes_per_token"], r["kl_mean"]), fontsize=8)
    axes.set_yscale("log")
    axes.set_xlabel("bytes of KV a token, all layers")
    axes.set_ylabel("KL divergence from the f32 cache, nats a token")


def plot(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    is_bench = isinstance(results, dict) and "rows" in results
    if not is_bench and not (isinstance(results, list) and results and "kl_mean" in results[0]):
        raise ValueError("neither the JSON of `headwater bench` nor rows of headwater.compare")
    height = 1.5 + 0.28 * len(results["rows"]) if is_bench else 4.5
    figure, axes = pyplot.subplots(figsize=(9, height))
    (plot_bench if is_bench else plot_compare)(results, axes)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m headwater.plot", description=__doc__)
    parser.add_argument("results")
    parser.add_argument("-o", "--output", default=None, help="default: results.svg beside the input")
    options = parser.parse_args(arguments)
    try:
        with open(options.results, encoding="utf-8") as file:
            results = json.load(file)
        output = options.output or options.results.removesuffix(".json") + ".svg"
        plot(results, output)
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"plot: {options.results}: {error}") from error
    print(output)


if __name__ == "__main__":
    main()
