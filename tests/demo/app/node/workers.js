// Worker threads, a child process through a pipe, and timers: what agents and build tools do all day.
const { Worker, isMainThread, parentPort, workerData } = require("node:worker_threads");
const { spawn, spawnSync } = require("node:child_process");

if (!isMainThread) {
  let sum = 0;
  for (let i = 0; i < 1e6; i++) sum += i % workerData;
  parentPort.postMessage(sum);
} else {
  const work = (n) =>
    new Promise((resolve, reject) => {
      const worker = new Worker(__filename, { workerData: n });
      worker.once("message", resolve).once("error", reject);
    });
  const child = () =>
    new Promise((resolve, reject) => {
      let text = "";
      const process = spawn("sh", ["-c", "echo from a child"]);
      process.stdout.on("data", (data) => (text += data));
      process.on("error", reject).on("close", () => resolve(text.trim()));
    });
  const sync = spawnSync("uname", { encoding: "utf8" });
  if (sync.status !== 0) throw sync.error || new Error(sync.stderr);
  Promise.all([2, 3, 5, 7].map(work).concat(child()))
    .then((results) => console.log(results.join(" ")))
    .catch((error) => {
      console.error(error);
      process.exit(1);
    });
}
