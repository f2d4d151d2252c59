// The package's worker with an engine that stops: which part of it does, the query says.
import './patch.js';
import '/lowbit/dist/worker.js';
