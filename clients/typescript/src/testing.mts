// For `import`: see index.mts.
export * from "./testing.js";
