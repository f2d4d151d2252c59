import { forgetModels, type Model, type ModelSource } from 'lowbit';
import { Chat } from './chat.js';
import { byId, say } from './dom.js';
import { Picker } from './picker.js';
import { Settings } from './settings.js';
import { setUpTheme } from './theme.js';

let model: Model | undefined;
let source: ModelSource | undefined;

setUpTheme();
const settings = new Settings({
  reload: () => source && void reload(source),
  change: leave,
  forget: async () => {
    leave();
    picker.forget();
    await forgetModels();
    say(byId('picker-notice'), 'Kept models were deleted.');
  },
});
const chat = new Chat(settings);
const picker = new Picker(() => settings.engine(), enter, (warning) => say(byId('warning'), warning));
byId('new-chat').addEventListener('click', () => chat.clear());
picker.resume();

/** Shows the conversation with a model that has been loaded. */
function enter(loaded: Model, from: ModelSource, warnings: string[]): void {
  model?.dispose();
  model = loaded;
  source = from;
  byId('model-name').textContent = loaded.info.name.replace(/\.(gguf|lowbit|safetensors)$/i, '');
  byId('empty-detail').textContent =
    'A small model: quick, friendly and sometimes wrong. It remembers this conversation, and nothing else.';
  say(byId('warning'), warnings.join(' '));
  settings.showFacts(loaded);
  show(true);
  chat.use(loaded);
  chat.focus();
}

/** Shows the choice of models again. */
function leave(): void {
  chat.use(undefined);
  model?.dispose();
  model = undefined;
  settings.showFacts(undefined);
  show(false);
}

async function reload(from: ModelSource): Promise<void> {
  leave();
  await picker.load(from);
}

function show(chatting: boolean): void {
  byId('picker').hidden = chatting;
  for (const id of ['chat', 'composer', 'model-chip', 'new-chat']) byId(id).hidden = !chatting;
}
