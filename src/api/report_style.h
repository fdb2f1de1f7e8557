// SPDX-License-Identifier: Apache-2.0
// The style sheet of report.html.
#pragma once

namespace wick::report {

inline constexpr const char kStyle[] = R"css(
:root {
  --page: #f7f7f5; --panel: #ffffff; --ink: #1d2026; --soft: #5b6270; --edge: #e2e3e0;
  --grid: #ebece9; --train: #2563c9; --held: #c2500a; --rate: #4b6b88;
  --good: #1a7340; --good-page: #e3f4e9; --warn: #8a4b00; --warn-page: #fdf0dc; --code: #f2f3f0;
  --m1: #3b6fb6; --m2: #d1702a; --m3: #5a9a57; --m4: #9a6cb4; --m5: #c2a12c; --m6: #5aa6a6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14161a; --panel: #1c1f25; --ink: #e7e8ea; --soft: #a2a9b4; --edge: #30343c;
    --grid: #2a2e35; --train: #79aaff; --held: #ff9d5c; --rate: #9db6cc;
    --good: #7fd6a0; --good-page: #1b3526; --warn: #ffc98a; --warn-page: #3b2b14; --code: #24282f;
    --m1: #6c9be0; --m2: #e8935a; --m3: #7fbd7b; --m4: #ba92d2; --m5: #d9bd55; --m6: #7cc4c4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 960px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 2px 0 10px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 0 0 14px; }
h4 { font-size: 13px; margin: 0 0 4px; color: var(--soft); font-weight: 600; }
.brand { margin: 0; color: var(--soft); font-size: 14px; }
.lead { margin: 0 0 8px; color: var(--soft); overflow-wrap: anywhere; }
.lead b { color: var(--ink); font-weight: 600; }
.note { margin: 0 0 12px; color: var(--soft); font-size: 14px; }
.status { margin: 12px 0; padding: 8px 12px; border-radius: 8px; font-size: 15px; }
.warn { color: var(--warn); background: var(--warn-page); }
section {
  background: var(--panel); border: 1px solid var(--edge); border-radius: 12px;
  padding: 22px 24px; margin-top: 20px;
}
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 22px 0 0; }
.card { background: var(--panel); border: 1px solid var(--edge); border-radius: 12px; padding: 14px 16px; }
.card dt { color: var(--soft); font-size: 13px; }
.card dd { margin: 2px 0 0; font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }
.card small { display: block; margin-top: 2px; color: var(--soft); font-size: 13px; font-weight: 400; white-space: normal; }
.to { color: var(--soft); font-weight: 400; }
figure { margin: 0; overflow-x: auto; }
.chart { display: block; width: 100%; height: auto; font-size: 12px; }
.chart text { fill: var(--soft); font-variant-numeric: tabular-nums; }
.chart .legend { fill: var(--ink); font-size: 13px; }
.chart .grid { stroke: var(--grid); }
.chart .axis { stroke: var(--soft); stroke-opacity: 0.6; fill: none; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.chart .train { stroke: var(--train); }
.chart .held { stroke: var(--held); stroke-dasharray: 5 4; stroke-width: 1.5; }
.chart .rate { stroke: var(--rate); stroke-width: 1.5; }
.chart .mark { stroke: var(--panel); stroke-width: 1.5; stroke-dasharray: none; }
.chart .train.mark { fill: var(--train); }
.chart .held.mark { fill: var(--held); }
.chart .rate.mark { fill: var(--rate); }
.chart .tip { fill: transparent; }
.chart .tip:hover { fill: var(--train); fill-opacity: 0.35; }
@media (max-width: 620px) { section > figure > .chart { min-width: 720px; } }
.small-charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 18px; margin-top: 18px; }
.sample { border-top: 1px solid var(--edge); padding-top: 16px; margin-top: 16px; }
h2 + .sample { border-top: 0; padding-top: 0; margin-top: 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 14px; }
.turn { min-width: 0; margin-bottom: 12px; }
.pair .turn { margin-bottom: 0; }
pre {
  margin: 0; padding: 10px 12px; max-height: 320px; overflow: auto; border-radius: 8px; background: var(--code);
  font: 13.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
.before pre { opacity: 0.85; }
.badge { padding: 1px 8px; margin-left: 4px; border-radius: 99px; font-weight: 500; background: var(--code); color: var(--soft); }
.good { background: var(--good-page); color: var(--good); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; width: 100%; }
caption { text-align: left; color: var(--soft); padding: 14px 0 4px; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--grid); vertical-align: top; font-weight: 400; }
thead th, th.group, tfoot th, tfoot td { font-weight: 600; }
th.group { padding-top: 18px; }
tr:first-child th.group { padding-top: 0; }
.numbers td, .numbers thead th + th { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.settings th[scope=row] { width: 250px; }
.settings td { overflow-wrap: anywhere; }
@media (max-width: 620px) {
  section { padding: 18px 16px; }
  .settings th[scope=row] { width: 45%; overflow-wrap: anywhere; }
}
code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
details { margin-top: 16px; }
summary { cursor: pointer; color: var(--soft); font-size: 14px; }
.bar { display: block; width: 100%; height: 20px; border-radius: 6px; margin-bottom: 10px; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 8px; }
@media (max-width: 620px) { th, td { padding-right: 6px; } .key { margin-right: 4px; } }
.m1 { fill: var(--m1); background: var(--m1); } .m2 { fill: var(--m2); background: var(--m2); }
.m3 { fill: var(--m3); background: var(--m3); } .m4 { fill: var(--m4); background: var(--m4); }
.m5 { fill: var(--m5); background: var(--m5); } .m6 { fill: var(--m6); background: var(--m6); }
@media print { section, .card { break-inside: avoid; } body { background: none; } }
)css";

}  // namespace wick::report
